//! Results of servers that speak earlier protocols, in which a result does not say that it is one. Callers of 2026-07-28 need
//! it said (S8), and the SDK takes it out again for those of earlier protocols.

use rmcp::model::{CallToolResult, CompleteResult, GetPromptResponse, ReadResourceResponse, ResultType};

/// A result that may lack its type.
pub(crate) trait Typed: Sized {
    /// Where the type is; none where it is always said.
    fn result_type(&mut self) -> Option<&mut Option<ResultType>>;

    /// The result with its type.
    fn typed(mut self) -> Self {
        if let Some(result_type) = self.result_type() {
            result_type.get_or_insert(ResultType::COMPLETE);
        }
        self
    }
}

impl Typed for CallToolResult {
    fn result_type(&mut self) -> Option<&mut Option<ResultType>> {
        Some(&mut self.result_type)
    }
}

impl Typed for CompleteResult {
    fn result_type(&mut self) -> Option<&mut Option<ResultType>> {
        Some(&mut self.result_type)
    }
}

impl Typed for GetPromptResponse {
    fn result_type(&mut self) -> Option<&mut Option<ResultType>> {
        match self {
            Self::Complete(result) => Some(&mut result.result_type),
            _ => None,
        }
    }
}

impl Typed for ReadResourceResponse {
    fn result_type(&mut self) -> Option<&mut Option<ResultType>> {
        match self {
            Self::Complete(result) => Some(&mut result.result_type),
            _ => None,
        }
    }
}
