mod form;
mod prompt;
mod terminal;
