//! What a fixture can ask a client for.
#![expect(deprecated, reason = "the protocol means to drop sampling and roots; the suite tests them")]

use rmcp::model::{
    CreateMessageRequest, CreateMessageRequestParams, ElicitRequest, ElicitRequestParams, ElicitationSchema,
    InputRequest, InputRequests, InputRequiredResult, JsonObject, ListRootsRequest, SamplingMessage,
};
use rmcp::object;

/// A form with these properties, the `required` ones of which have to be filled in.
pub(crate) fn form(message: &str, properties: JsonObject, required: &[&str]) -> ElicitRequestParams {
    let schema = object!({ "type": "object", "properties": properties, "required": required });
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: message.to_owned(),
        requested_schema: ElicitationSchema::from_json_schema(schema)
            .expect("the fixtures ask for simple properties only"),
    }
}

/// What a model says to `prompt`.
pub(crate) fn completion(prompt: &str, max_tokens: u32) -> CreateMessageRequestParams {
    CreateMessageRequestParams::new(vec![SamplingMessage::user_text(prompt)], max_tokens)
}

/// [`form`], as a question of a round or a task.
pub(crate) fn ask_form(message: &str, properties: JsonObject, required: &[&str]) -> InputRequest {
    InputRequest::Elicitation(ElicitRequest::new(form(message, properties, required)))
}

/// [`completion`], as a question of a round.
pub(crate) fn ask_completion(prompt: &str, max_tokens: u32) -> InputRequest {
    InputRequest::CreateMessage(CreateMessageRequest::new(completion(prompt, max_tokens)))
}

/// The client's roots, as a question of a round.
pub(crate) fn ask_roots() -> InputRequest {
    InputRequest::ListRoots(ListRootsRequest::default())
}

/// A round of one question, which asks for nothing to be sent back with the answer.
pub(crate) fn only(key: &str, question: InputRequest) -> InputRequiredResult {
    InputRequiredResult::from_input_requests(InputRequests::from([(key.to_owned(), question)]))
}
