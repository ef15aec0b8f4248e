//! The changes that other replicas made, heard on a connection of its own.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use futures::{
    StreamExt,
    channel::{
        mpsc::{self, UnboundedReceiver},
        oneshot,
    },
    future::{Either, select},
    stream,
};
use outlast_core::{Hint, TaskId};
use tokio_postgres::{AsyncMessage, Client};

use crate::{
    error::PostgresError,
    session::{Address, within},
    shared::Shared,
};

/// The pauses between attempts to listen again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What somebody said on the channel.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Changed(Vec<TaskId>),
    Gap,
    /// Our own sign of life, by its number.
    Alive(u64),
    /// What is known here, or meant for another.
    Nothing,
}

/// Listens until the store is closed, again and again. Says when the first attempt has succeeded or failed.
pub(crate) async fn follow(
    shared: Arc<Shared>,
    address: Arc<Address>,
    heartbeat: Duration,
    first: oneshot::Sender<()>,
) {
    let mut pause = FIRST_PAUSE;
    let mut first = Some(first);
    loop {
        let mut listened = false;
        let error = listen(&shared, &address, heartbeat, &mut listened, &mut first).await;
        drop(first.take());
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the change feed lost its connection to the database and connects again; changes by other replicas are \
             seen later until then"
        );
        if listened {
            pause = FIRST_PAUSE;
        } else {
            shared.outage.store(true, Ordering::Relaxed);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the connection is lost, and says how.
async fn listen(
    shared: &Shared,
    address: &Address,
    heartbeat: Duration,
    listened: &mut bool,
    first: &mut Option<oneshot::Sender<()>>,
) -> PostgresError {
    let (client, mut connection) = match address.raw().await {
        Ok(connected) => connected,
        Err(error) => return error,
    };
    let (heard, notices) = mpsc::unbounded();
    let driver = pin!(async {
        let mut messages = stream::poll_fn(|cx| connection.poll_message(cx));
        while let Some(message) = messages.next().await {
            match message {
                Ok(AsyncMessage::Notification(notice)) => {
                    // Its reader goes only with this.
                    drop(heard.unbounded_send(notice.payload().to_owned()));
                }
                Ok(_) => {}
                Err(error) => return error.into(),
            }
        }
        PostgresError::lost("the database closed the connection")
    });
    let follower = pin!(relay(shared, &client, notices, heartbeat, listened, first));
    match select(driver, follower).await {
        Either::Left((error, _)) | Either::Right((error, _)) => error,
    }
}

async fn relay(
    shared: &Shared,
    client: &Client,
    mut notices: UnboundedReceiver<String>,
    heartbeat: Duration,
    listened: &mut bool,
    first: &mut Option<oneshot::Sender<()>>,
) -> PostgresError {
    let channel = &shared.channel;
    if let Err(error) = within(heartbeat, client.batch_execute(&format!("LISTEN {channel}"))).await {
        return error;
    }
    *listened = true;
    match first.take() {
        // Nobody follows yet, and so nobody missed anything.
        Some(first) => drop(first.send(())),
        // What was said before is not heard; whoever follows reads again.
        None => shared.hints.send(Hint::Gap),
    }
    let mut beat: u64 = 0;
    loop {
        // A connection whose other end is gone says nothing, for hours: it has to bring back what we say ourselves.
        beat += 1;
        let replica = &shared.replica;
        let alive = format!("SELECT pg_notify('{channel}', 'a{replica}{beat}')");
        if let Err(error) = within(heartbeat, client.batch_execute(&alive)).await {
            return error;
        }
        let mut answered = false;
        let mut until = pin!(tokio::time::sleep(heartbeat));
        loop {
            match select(notices.next(), until.as_mut()).await {
                Either::Left((Some(notice), _)) => match understand(&notice, replica) {
                    Heard::Changed(ids) => shared.hint(&ids),
                    Heard::Gap => shared.hints.send(Hint::Gap),
                    Heard::Alive(number) => answered |= number == beat,
                    Heard::Nothing => {}
                },
                Either::Left((None, _)) => return PostgresError::lost("the connection ended"),
                Either::Right(_) if answered => break,
                Either::Right(_) => return PostgresError::timeout(heartbeat),
            }
        }
    }
}

fn understand(notice: &str, replica: &str) -> Heard {
    let (Some(kind), Some(from)) = (notice.get(..1), notice.get(1..=replica.len())) else {
        // Nobody of this version says so little; someone of a later one might.
        return Heard::Gap;
    };
    let rest = notice.get(1 + replica.len()..).unwrap_or_default();
    match kind {
        "a" if from == replica => rest.parse().map_or(Heard::Nothing, Heard::Alive),
        "a" => Heard::Nothing,
        // Told here when they were durable.
        "c" | "g" if from == replica => Heard::Nothing,
        "c" => match BASE64_STANDARD_NO_PAD.decode(rest) {
            Ok(ids) if ids.len() % 16 == 0 => {
                let id = |bytes: &[u8]| bytes.try_into().ok().map(TaskId::from_bytes);
                Heard::Changed(ids.chunks_exact(16).filter_map(id).collect())
            }
            _ => Heard::Gap,
        },
        _ => Heard::Gap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::save::told;

    const ONE: &str = "0123456789abcdef";
    const TWO: &str = "fedcba9876543210";

    #[test]
    fn what_one_replica_tells_another_understands() {
        let ids: Vec<_> = (0..3).map(|n| TaskId::from_bytes([n; 16])).collect();
        assert_eq!(understand(&told(ONE, &ids), TWO), Heard::Changed(ids.clone()));
        assert_eq!(understand(&told(ONE, &ids), ONE), Heard::Nothing, "it was told when it was durable");
    }

    #[test]
    fn a_full_batch_fits_into_one_notice_and_more_is_a_gap() {
        let ids = |count| vec![TaskId::from_bytes([7; 16]); count];
        assert!(told(ONE, &ids(256)).len() < 8_000);
        assert_eq!(understand(&told(ONE, &ids(10_000)), TWO), Heard::Gap);
    }

    #[test]
    fn a_sign_of_life_is_its_senders_alone() {
        assert_eq!(understand(&format!("a{ONE}12"), ONE), Heard::Alive(12));
        assert_eq!(understand(&format!("a{ONE}12"), TWO), Heard::Nothing);
    }

    #[test]
    fn what_is_not_understood_is_a_gap() {
        for notice in
            ["", "c", "cshort", "é", &format!("c{ONE}!!"), &format!("c{ONE}AAAA"), &format!("z{ONE}")]
        {
            assert_eq!(understand(notice, TWO), Heard::Gap, "{notice:?}");
        }
    }
}
