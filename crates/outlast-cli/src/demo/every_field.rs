//! A form with a field of each kind that the protocol knows.

use serde_json::{Value, json};

/// The question that asks for it.
pub(super) fn question(message: &str) -> Value {
    json!({"method": "elicitation/create", "params": {
        "mode": "form",
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "title": "Name", "minLength": 1, "maxLength": 40},
                "email": {"type": "string", "title": "E-mail", "format": "email"},
                "page": {"type": "string", "title": "Web page", "format": "uri"},
                "day": {"type": "string", "title": "Day", "format": "date"},
                "at": {"type": "string", "title": "At", "format": "date-time"},
                "guests": {"type": "integer", "title": "Guests", "minimum": 1, "maximum": 12, "default": 2},
                "budget": {"type": "number", "title": "Budget", "minimum": 0},
                "outside": {"type": "boolean", "title": "Outside", "default": false},
                "menu": {"type": "string", "title": "Menu", "enum": ["fish", "meat", "plants"], "default": "plants"},
                "table": {"type": "string", "title": "Table", "oneOf": [
                    {"const": "t1", "title": "By the window"},
                    {"const": "t2", "title": "By the fire"},
                ]},
                "avoid": {"type": "array", "title": "Avoid", "items": {"type": "string", "enum": ["nuts", "milk", "wheat"]}},
                "extras": {
                    "type": "array",
                    "title": "Extras",
                    "description": "What shall be there when you come?",
                    "minItems": 1,
                    "maxItems": 2,
                    "items": {"anyOf": [
                        {"const": "w", "title": "Water"},
                        {"const": "b", "title": "Bread"},
                        {"const": "f", "title": "Flowers"},
                    ]},
                },
            },
            "required": ["name", "guests", "table", "extras"],
        },
    }})
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ElicitRequestParams, ElicitationSchema};

    #[test]
    fn it_is_a_form_of_the_protocol() {
        let params = super::question("?")["params"].take();
        let schema: ElicitationSchema = serde_json::from_value(params["requestedSchema"].clone()).unwrap();
        assert_eq!(schema.properties.len(), 12);
        serde_json::from_value::<ElicitRequestParams>(params).unwrap();
    }
}
