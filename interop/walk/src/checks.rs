//! What is printed, and what the process ends with.

use std::process::ExitCode;
use std::time::Duration;

/// The longest that a check may take.
const LIMIT: Duration = Duration::from_secs(30);

pub struct Checks {
    peer: String,
    passed: usize,
    failed: usize,
}

impl Checks {
    pub fn new(peer: &str) -> Self {
        Self { peer: peer.to_owned(), passed: 0, failed: 0 }
    }

    pub async fn run(&mut self, name: &str, check: impl Future<Output = anyhow::Result<String>>) {
        let ended = tokio::time::timeout(LIMIT, check).await;
        match ended.unwrap_or_else(|_| Err(anyhow::anyhow!("took more than {} s", LIMIT.as_secs()))) {
            Ok(seen) => {
                self.passed += 1;
                println!("ok {name}: {}", line(&seen));
            }
            Err(error) => {
                self.failed += 1;
                println!("FAIL {name}: {}", line(&format!("{error:#}")));
            }
        }
    }

    pub fn not_offered(&self, name: &str, why: &str) {
        println!("not offered {name} by {}: {}", self.peer, line(why));
    }

    pub fn end(&self) -> ExitCode {
        if self.failed == 0 && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
