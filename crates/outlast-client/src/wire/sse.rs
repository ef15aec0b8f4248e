//! Server-sent events out of bytes, none of them longer than is allowed.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures::{
    Stream, StreamExt,
    stream::{BoxStream, unfold},
};
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::Sse;

use super::{
    asked::{Asked, UnderWay, too_long},
    glance::Glance,
};

/// The events of a body, rewritten for the SDK.
///
/// A body that breaks off ends like any other: the SDK asks for the rest of a stream that broke off at once and without
/// end, and of one that ended after a pause. `under_way` is the request whose answer this is.
pub(crate) fn events<E>(
    body: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    max_event: usize,
    asked: Arc<Asked>,
    under_way: Option<UnderWay>,
) -> BoxStream<'static, Result<Sse, SseError>>
where
    E: std::fmt::Display + Send + 'static,
{
    let reader = Reader {
        body: body.boxed(),
        parser: Parser::new(max_event),
        read: VecDeque::new(),
        asked,
        under_way,
    };
    unfold(reader, |mut reader| async move { reader.next().await.map(|event| (Ok(event), reader)) }).boxed()
}

struct Reader<E> {
    body: BoxStream<'static, Result<Bytes, E>>,
    parser: Parser,
    read: VecDeque<Sse>,
    asked: Arc<Asked>,
    under_way: Option<UnderWay>,
}

impl<E: std::fmt::Display> Reader<E> {
    async fn next(&mut self) -> Option<Sse> {
        loop {
            if let Some(mut event) = self.read.pop_front() {
                if event.id.is_some()
                    && let Some(under_way) = self.under_way.take()
                {
                    // From here on the answer may come on the stream that takes this one up again.
                    under_way.keep();
                }
                event.data = event.data.and_then(|data| self.asked.rewrite(data));
                return Some(event);
            }
            match self.body.next().await {
                Some(Ok(piece)) => self.parser.read(&piece, &mut self.read),
                Some(Err(error)) => {
                    tracing::debug!(%error, "an event stream broke off");
                    return None;
                }
                None => return None,
            }
        }
    }
}

/// The parser of the HTML standard ("9.2.6 Interpreting an event stream"), with a limit.
struct Parser {
    max_event: usize,
    line: Vec<u8>,
    after_return: bool,
    event: Sse,
    data: Vec<u8>,
    overlong: Option<Glance>,
    glancing: bool,
    first: bool,
}

impl Parser {
    fn new(max_event: usize) -> Parser {
        Parser {
            max_event,
            line: Vec::new(),
            after_return: false,
            event: Sse::default(),
            data: Vec::new(),
            overlong: None,
            glancing: false,
            first: true,
        }
    }

    fn read(&mut self, mut piece: &[u8], events: &mut VecDeque<Sse>) {
        while let Some(first) = piece.first() {
            if std::mem::take(&mut self.after_return) && *first == b'\n' {
                piece = &piece[1..];
                continue;
            }
            let end = piece.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            self.part(&piece[..end.unwrap_or(piece.len())]);
            let Some(end) = end else { return };
            self.after_return = piece[end] == b'\r';
            piece = &piece[end + 1..];
            events.extend(self.end_of_line());
        }
    }

    /// A part of a line.
    fn part(&mut self, part: &[u8]) {
        if let Some(glance) = &mut self.overlong {
            if self.glancing {
                glance.read(part);
            }
            // Kept as a mark that the line is not empty.
            self.line.extend(part.first());
            self.line.truncate(1);
        } else if self.data.len() + self.line.len() + part.len() > self.max_event {
            let glance = self.overlong.insert(Glance::default());
            let line = [self.line.as_slice(), part].concat();
            // A message has one line in practice; one that has more is not looked at.
            if self.event.data.is_none()
                && let Some(message) = line.strip_prefix(b"data:")
            {
                glance.read(message);
                self.glancing = true;
            }
            self.data = Vec::new();
            self.line = vec![b'.'];
        } else {
            self.line.extend_from_slice(part);
        }
    }

    fn end_of_line(&mut self) -> Option<Sse> {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.first) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.is_empty() {
            return self.end_of_event();
        }
        if self.overlong.is_some() {
            self.glancing = false;
            return None;
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line.as_slice(), &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = || String::from_utf8_lossy(value).into_owned();
        match field {
            b"data" => {
                if self.event.data.is_some() {
                    self.data.push(b'\n');
                }
                self.event.data.get_or_insert_default();
                self.data.extend_from_slice(value);
            }
            b"event" => self.event.event = Some(text()),
            b"id" if !value.contains(&0) => self.event.id = Some(text()),
            b"retry" => self.event.retry = text().parse().ok().or(self.event.retry),
            // A comment, or a field of a later standard.
            _ => {}
        }
        None
    }

    fn end_of_event(&mut self) -> Option<Sse> {
        let mut event = std::mem::take(&mut self.event);
        let data = std::mem::take(&mut self.data);
        if let Some(glance) = self.overlong.take() {
            tracing::warn!(max = self.max_event, "an event of the server was too long; it is skipped");
            event.data = glance.answered().map(|id| too_long(&id, self.max_event).to_string());
        } else if event.data.is_some() {
            event.data = Some(String::from_utf8_lossy(&data).into_owned());
        }
        let is_empty = event.data.is_none() && event.id.is_none() && event.retry.is_none();
        (!is_empty).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use futures::stream::iter;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn parse(text: &[u8], piece: usize, max_event: usize) -> Vec<Sse> {
        let (mut parser, mut events) = (Parser::new(max_event), VecDeque::new());
        for piece in text.chunks(piece) {
            parser.read(piece, &mut events);
        }
        events.into()
    }

    fn data(events: &[Sse]) -> Vec<Option<&str>> {
        events.iter().map(|event| event.data.as_deref()).collect()
    }

    #[test]
    fn each_field_is_read_whatever_ends_its_line() {
        for end in ["\n", "\r\n", "\r"] {
            let text = "\u{feff}: hello~id: 1~event:message~retry: 500~data: one~data:  two~~data~~:~~data: cut off~"
                .replace('~', end);
            for piece in [1, 2, 1_000] {
                let events = parse(text.as_bytes(), piece, 100);
                assert_eq!(data(&events), [Some("one\n two"), Some("")], "{end:?} {piece}");
                let first = &events[0];
                assert_eq!((first.id.as_deref(), first.retry), (Some("1"), Some(500)));
                assert_eq!(first.event.as_deref(), Some("message"));
            }
        }
    }

    #[test]
    fn an_event_that_is_too_long_fails_the_request_that_it_answers_and_the_next_one_passes() {
        let long = "x".repeat(200);
        let text = format!(
            "id: 1\ndata: {{\"result\":\"{long}\",\"id\":7}}\n\n: {long}\n\ndata: {{\"method\":\"{long}\"}}\n\ndata: short\n\n"
        );
        for piece in [1, 50, 10_000] {
            let events = parse(text.as_bytes(), piece, 100);
            let [failed, passed] = events.as_slice() else { panic!("{events:?}") };
            let answer: Value = serde_json::from_str(failed.data.as_deref().unwrap()).unwrap();
            assert_eq!((&answer["id"], failed.id.as_deref()), (&json!(7), Some("1")));
            assert!(answer["error"]["message"].as_str().unwrap().contains("longer than the 100 bytes"));
            assert_eq!(passed.data.as_deref(), Some("short"));
        }
        assert_eq!(data(&parse(format!("data:{}\n\n", &long[..95]).as_bytes(), 7, 100)), [Some(&long[..95])]);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_ends() {
        let body = [Ok(Bytes::from("data: 1\n\ndata: 2\n")), Err("reset"), Ok(Bytes::from("data: 3\n\n"))];
        let events = events(iter(body), 100, Asked::new(Arc::default()), None);
        let read: Vec<_> = events.map(|event| event.unwrap().data.unwrap()).collect().await;
        assert_eq!(read, ["1"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_in_any_pieces(bytes: Vec<u8>, piece in 1..16_usize, max in 8..64_usize) {
            let (whole, pieces) = (parse(&bytes, usize::MAX, max), parse(&bytes, piece, max));
            prop_assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
        }

        #[test]
        fn events_of_many_lines_are_read_alike_in_any_pieces(
            lines in prop::collection::vec("(data|id|event|retry|:|)[: ]{0,3}[a-z0-9{}\"]{0,12}(\r|\n|\r\n)", 0..20),
            piece in 1..16_usize,
            max in 8..64_usize,
        ) {
            let text = lines.concat();
            let (whole, pieces) = (parse(text.as_bytes(), usize::MAX, max), parse(text.as_bytes(), piece, max));
            prop_assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
        }
    }
}
