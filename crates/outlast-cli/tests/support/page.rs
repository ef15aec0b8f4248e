//! The operators' page of a gateway, as its users reach it.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use super::{Http, PATIENCE};

/// Where the page is, as the banner says, and the token that it has.
pub(crate) fn of(gateway: &Http) -> (String, Option<String>) {
    let line = gateway.banner.lines().find_map(|line| line.strip_prefix("Their page:")).unwrap().trim();
    let (url, token) = match line.split_once("#token=") {
        Some((url, token)) => (url, Some(token.to_owned())),
        None => (line, None),
    };
    (url.strip_prefix("http://").unwrap().strip_suffix("/ui").unwrap().to_owned(), token)
}

/// The status and the body of an answer of the page's listener.
pub(crate) fn ask(address: &str, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
