//! Prompts, one of which asks for something first.

use rmcp::ErrorData;
use rmcp::model::{
    ContentBlock, GetPromptRequestParams, GetPromptResponse, GetPromptResult, Prompt, PromptArgument,
    PromptMessage, Role,
};
use rmcp::object;

use crate::media;
use crate::questions::{ask_form, only};
use crate::requests::{answer, filled_in, text_argument};

/// Name, description, required arguments.
const PROMPTS: [(&str, &str, &[&str]); 5] = [
    ("test_simple_prompt", "A prompt without arguments", &[]),
    ("test_prompt_with_arguments", "A prompt with two arguments", &["arg1", "arg2"]),
    ("test_prompt_with_embedded_resource", "A prompt about a resource", &["resourceUri"]),
    ("test_prompt_with_image", "A prompt about an image", &[]),
    ("test_input_required_result_prompt", "A prompt that asks for its context", &[]),
];

pub(crate) fn list() -> Vec<Prompt> {
    let argument = |name: &&str| PromptArgument::new(*name).with_required(true);
    PROMPTS
        .iter()
        .map(|(name, description, required)| {
            let arguments: Vec<_> = required.iter().map(argument).collect();
            Prompt::new(*name, Some(*description), (!arguments.is_empty()).then_some(arguments))
        })
        .collect()
}

pub(crate) fn get(request: GetPromptRequestParams) -> Result<GetPromptResponse, ErrorData> {
    let argument = |name| text_argument(request.arguments.as_ref(), name);
    let contents = match request.name.as_str() {
        "test_simple_prompt" => vec![ContentBlock::text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (arg1, arg2) = (argument("arg1")?, argument("arg2")?);
            vec![ContentBlock::text(format!("Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            vec![
                ContentBlock::embedded_text(
                    argument("resourceUri")?,
                    "Embedded resource content for testing.",
                ),
                ContentBlock::text("Please process the embedded resource above."),
            ]
        }
        "test_prompt_with_image" => {
            vec![media::image(), ContentBlock::text("Please analyze the image above.")]
        }
        "test_input_required_result_prompt" => {
            const KEY: &str = "user_context";
            let Some(answer) = answer(request.input_responses.as_ref(), KEY) else {
                let fields = object!({ "context": { "type": "string" } });
                let question = ask_form("What context should the prompt use?", fields, &["context"]);
                return Ok(only(KEY, question).into());
            };
            vec![ContentBlock::text(format!("Prompt with context: {}", filled_in(answer, "context")))]
        }
        name => return Err(ErrorData::invalid_params(format!("unknown prompt: {name}"), None)),
    };
    let messages = contents.into_iter().map(|content| PromptMessage::new(Role::User, content));
    Ok(GetPromptResult::new(messages.collect()).into())
}
