//! Faults that implementations of tasks shipped, where they belong to the domain. Those of a store are in its suite.

use std::time::Duration;

use outlast_core::{InvalidSpec, Spec};

#[test]
fn c22_a_ttl_of_nothing_is_refused() {
    for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        let spec = Spec { ttl: Some(ttl), ..Spec::new("tool") };
        assert_eq!(spec.check(), Err(InvalidSpec::Duration { setting: "ttl" }));
    }
    for ttl in [None, Some(Duration::from_millis(1)), Some(Duration::from_secs(86_400 * 365))] {
        assert_eq!(Spec { ttl, ..Spec::new("tool") }.check(), Ok(()));
    }
}

#[test]
fn c22_every_setting_that_cannot_be_kept_is_named() {
    let spec = || Spec::new("tool");
    for (refused, setting) in [
        (Spec { deadline: Some(Duration::ZERO), ..spec() }, "deadline"),
        (Spec { poll: Some(Duration::ZERO), ..spec() }, "poll interval"),
        (Spec { poll: Some(Duration::MAX), ..spec() }, "poll interval"),
        (Spec { min_retention: Duration::MAX, ..spec() }, "minimum retention"),
        (Spec { cancel_grace: Duration::MAX, ..spec() }, "cancel grace"),
    ] {
        let refused = refused.check().unwrap_err();
        assert_eq!(refused, InvalidSpec::Duration { setting });
        assert!(refused.to_string().contains(setting));
    }
    assert_eq!(Spec::new("").check(), Err(InvalidSpec::Tool));
    assert_eq!(Spec { max_attempts: 0, ..spec() }.check(), Err(InvalidSpec::Attempts));
}
