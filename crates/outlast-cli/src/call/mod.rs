mod arguments;
mod exit;
mod form;
mod output;
mod prompt;
mod terminal;
