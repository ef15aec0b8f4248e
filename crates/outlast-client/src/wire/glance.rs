//! Finds out whom a message is for that is too long to be kept.

use serde_json::Value;

/// An id that is longer is none of ours.
const MAX_ID: usize = 128;

/// Reads a JSON-RPC message piece by piece and keeps nothing of it but its id, so that the request it answers can fail at
/// once instead of at its deadline.
#[derive(Debug, Default)]
pub(crate) struct Glance {
    depth: usize,
    in_string: bool,
    escaped: bool,
    at_key: bool,
    key: Vec<u8>,
    id: Vec<u8>,
    is_request: bool,
}

impl Glance {
    /// Reads on.
    pub(crate) fn read(&mut self, piece: &[u8]) {
        for byte in piece {
            self.byte(*byte);
        }
    }

    /// The id of the request that the message answers; `None` when it is no answer.
    pub(crate) fn answered(&self) -> Option<Value> {
        let id: Value = serde_json::from_slice(&self.id).ok()?;
        (!self.is_request && (id.is_number() || id.is_string())).then_some(id)
    }

    fn byte(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    self.is_request |= self.depth == 1 && self.at_key && self.key == b"method";
                }
                _ => {}
            }
            return self.keep(byte);
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 && self.at_key {
                    self.key.clear();
                } else {
                    self.keep(byte);
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.at_key = byte == b'{';
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.at_key = false;
            }
            b':' => self.at_key = false,
            b',' => self.at_key = true,
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.keep(byte),
        }
    }

    /// Keeps the bytes of the keys and of the id of the message itself.
    fn keep(&mut self, byte: u8) {
        if self.depth != 1 {
            return;
        }
        if self.at_key {
            if self.in_string && self.key.len() < MAX_ID {
                self.key.push(byte);
            }
        } else if self.key == b"id" && self.id.len() < MAX_ID {
            self.id.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn answered(text: &str, piece: usize) -> Option<Value> {
        let mut glance = Glance::default();
        for piece in text.as_bytes().chunks(piece) {
            glance.read(piece);
        }
        glance.answered()
    }

    #[test]
    fn the_id_of_an_answer_is_found_wherever_it_stands() {
        let long = "x".repeat(1_000);
        for text in [
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"id":8,"method":"{long}","a":[{{"id":9}}]}}}}"#),
            format!(
                r#"{{ "result" : ["{long}", {{"id":8}}, "a\"id\":5,\\"] , "jsonrpc":"2.0" , "id" : 7 }}"#
            ),
            format!(r#"{{"{long}":1,"error":{{"message":"}} \" id: 9"}},"id":7}}"#),
        ] {
            for piece in [1, 3, 10_000] {
                assert_eq!(answered(&text, piece), Some(json!(7)), "{text}");
            }
        }
        assert_eq!(answered(r#"{"id":"a\"7","result":1}"#, 2), Some(json!("a\"7")));
    }

    #[test]
    fn what_is_no_answer_answers_nothing() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#,
            r#"{"method":"notifications/message","params":{"id":7}}"#,
            r#"{"id":null,"result":{}}"#,
            r#"[{"id":7,"result":{}}]"#,
            r#""id":7"#,
            "no JSON at all: id",
            "",
        ] {
            assert_eq!(answered(text, 1), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, piece in 1..64_usize) {
            let mut glance = Glance::default();
            for piece in bytes.chunks(piece) {
                glance.read(piece);
            }
            let _ = glance.answered();
        }

        #[test]
        fn the_id_is_found_in_any_answer(id: i64, result in "\\PC*", last: bool) {
            let result = json!({"text": result, "id": 1});
            let text = if last {
                format!(r#"{{"result":{result},"id":{id}}}"#)
            } else {
                format!(r#"{{"id":{id},"result":{result}}}"#)
            };
            prop_assert_eq!(answered(&text, 5), Some(json!(id)));
        }
    }
}
