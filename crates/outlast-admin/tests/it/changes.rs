//! The stream of changes.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures::StreamExt as _;
use outlast_core::Event;

use crate::support::{Place, TOKEN, id, request};

async fn stream(place: &Place) -> BodyDataStream {
    let response = place.send(request("GET", "/api/changes", Some(TOKEN)).body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut stream = response.into_body().into_data_stream();
    assert_eq!(event(&mut stream).await.as_deref(), Some("event: open\ndata: {}\n\n"));
    stream
}

async fn event(stream: &mut BodyDataStream) -> Option<String> {
    let event = stream.next().await?.unwrap();
    Some(String::from_utf8(event.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn the_ids_of_tasks_that_changed_come_together_and_each_once() {
    let place = Place::new();
    let mut stream = stream(&place).await;
    let token = place.task(2, "alice", "slow").await;
    place.task(1, "alice", "slow").await;
    place.does(2, token, Event::SetMessage(Some("half".to_owned()))).await;
    let changed = format!("event: changed\ndata: [\"{}\",\"{}\"]\n\n", id(1), id(2));
    assert_eq!(event(&mut stream).await, Some(changed));
    place.does(2, token, Event::SetMessage(Some("most".to_owned()))).await;
    assert_eq!(event(&mut stream).await, Some(format!("event: changed\ndata: [\"{}\"]\n\n", id(2))));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_fell_behind_is_told_of_the_gap_and_goes_on() {
    let place = Place::new();
    let mut stream = stream(&place).await;
    let token = place.task(1, "alice", "slow").await;
    for n in 0..20_000 {
        place.does(1, token, Event::SetMessage(Some(n.to_string()))).await;
    }
    assert_eq!(event(&mut stream).await.as_deref(), Some("event: gap\ndata: {}\n\n"));
    assert_eq!(event(&mut stream).await, Some(format!("event: changed\ndata: [\"{}\"]\n\n", id(1))));
}

#[tokio::test(start_paused = true)]
async fn more_tasks_than_an_event_names_are_a_gap() {
    let place = Place::new();
    let mut stream = stream(&place).await;
    for n in 0..600_u32 {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        let call = outlast_core::Call::new(outlast_core::Payload::null());
        let spec = outlast_core::Spec::new("slow");
        let id = outlast_core::TaskId::from_bytes(bytes);
        let new = outlast_core::NewTask::new(id, outlast_core::Owner::anonymous(), spec, call);
        outlast_core::Store::create(&*place.store, new, None).await.unwrap();
    }
    assert_eq!(event(&mut stream).await.as_deref(), Some("event: gap\ndata: {}\n\n"));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_says_that_it_is_there() {
    let place = Place::new();
    let mut stream = stream(&place).await;
    // Time that is paused goes on to what is waited for next.
    let (early, late) = (Duration::from_secs(14), Duration::from_secs(2));
    assert!(tokio::time::timeout(early, event(&mut stream)).await.is_err());
    let event = tokio::time::timeout(late, event(&mut stream)).await;
    assert_eq!(event.unwrap().as_deref(), Some(": nothing new\n\n"));
}

#[tokio::test(start_paused = true)]
async fn streams_end_when_the_process_is_to_end() {
    let place = Place::new();
    let mut before = stream(&place).await;
    place.admin.stop();
    assert_eq!(event(&mut before).await, None);
    let mut after = stream(&place).await;
    assert_eq!(event(&mut after).await, None, "also one that comes later");
}

#[tokio::test(start_paused = true)]
async fn there_is_a_place_again_for_a_stream_that_was_closed() {
    let place = Place::new();
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(stream(&place).await);
    }
    let ask = || request("GET", "/api/changes", Some(TOKEN)).body(Body::empty()).unwrap();
    assert_eq!(place.send(ask()).await.status(), 503);
    open.pop();
    open.push(stream(&place).await);
}
