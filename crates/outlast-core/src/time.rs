//! Time as a value: instants, and the clock that a store is given.

use std::{
    fmt,
    ops::{Add, Sub},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// An instant on the store's clock, in milliseconds since the Unix epoch. `Display` writes it as RFC 3339, in UTC.
///
/// ```
/// use outlast_core::Timestamp;
/// assert_eq!(Timestamp::from_millis(1_795_968_643_120).to_string(), "2026-11-29T16:10:43.120Z");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant that is `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How long `earlier` lies before this instant; zero when it does not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: i64 = 86_400_000;
        let (day, time) = (self.0.div_euclid(DAY), self.0.rem_euclid(DAY));
        // Counted in cycles of 400 years from a first of March, so that a leap day is the last of its year.
        let since = day + 719_468;
        let (cycle, day) = (since.div_euclid(146_097), since.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = 400 * cycle + year + i64::from(month <= 2);
        let (hour, minute, second) = (time / 3_600_000, time / 60_000 % 60, time / 1_000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", time % 1_000)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }
}

/// The clock that an embedded store is given.
///
/// Two readings, because neither serves alone: instants are kept on the wall clock, which somebody may set, and
/// the other tells how much time really went by.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// Time since some fixed point; it never goes back, is not set by anyone, and counts suspend where it can.
    fn monotonic(&self) -> Duration;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn monotonic(&self) -> Duration {
        (**self).monotonic()
    }
}

/// A clock that stands still until it is told otherwise, for tests.
///
/// ```
/// use std::time::Duration;
/// use outlast_core::{Clock, ManualClock, Timestamp};
/// let clock = ManualClock::new(Timestamp::from_millis(1_000));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now(), Timestamp::from_millis(2_000));
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<(Timestamp, Duration)>>);

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(Mutex::new((now, Duration::ZERO))))
    }

    /// Lets time pass, on both readings.
    pub fn advance(&self, by: Duration) {
        let mut at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *at = (at.0 + by, at.1 + by);
    }

    /// Sets the wall clock, forward or back, while no time passes.
    pub fn set_wall(&self, now: Timestamp) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn monotonic(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// What a store's clock says at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The instant to decide with.
    pub now: Timestamp,
    /// Whether expired leases may be taken over and deadlines swept now.
    pub settled: bool,
}

/// Turns a [`Clock`] into the time that a store decides with.
///
/// - It never runs back below its mark, which the store persists: a clock set back by an operator would otherwise
///   give a later change an earlier date. It does not stand still there either: a machine that began with a date of
///   next year would keep every lease and timer waiting for a year once its date is put right.
/// - After the wall clock jumped forward, or after [`StoreClock::pause`], takeovers and sweeps wait for one lease,
///   so that workers that are alive can renew before anyone calls them dead.
#[derive(Debug, Clone)]
pub struct StoreClock {
    mark: Timestamp,
    seen: Option<(Timestamp, Duration)>,
    /// While the mark is ahead of the wall clock: the mark and the monotonic reading from which it goes on by itself.
    ahead: Option<(Timestamp, Duration)>,
    lease: Duration,
    paused_until: Duration,
}

/// Wall and monotonic clocks drift apart by less than this between two readings unless somebody set one.
const JUMP: Duration = Duration::from_secs(5);

impl StoreClock {
    /// A clock that does not run below `mark`, the latest instant that the store persisted.
    #[must_use]
    pub fn new(mark: Timestamp) -> Self {
        Self { mark, seen: None, ahead: None, lease: Duration::ZERO, paused_until: Duration::ZERO }
    }

    /// The latest instant given out, for the store to persist.
    #[must_use]
    pub fn mark(&self) -> Timestamp {
        self.mark
    }

    /// Remembers the longest lease in use: the length of a pause.
    pub fn observe_lease(&mut self, lease: Duration) {
        self.lease = self.lease.max(lease);
    }

    /// Leaves expired leases alone for one lease from now, as after an outage of the store.
    pub fn pause(&mut self, clock: &(impl Clock + ?Sized)) {
        self.paused_until = clock.monotonic() + self.lease;
    }

    /// Reads `clock`.
    pub fn read(&mut self, clock: &(impl Clock + ?Sized)) -> Reading {
        let (wall, monotonic) = (clock.now(), clock.monotonic());
        let (last_wall, last_monotonic) = self.seen.replace((wall, monotonic)).unwrap_or((wall, monotonic));
        if wall.since(last_wall) > monotonic.saturating_sub(last_monotonic) + JUMP {
            self.pause(clock);
        }
        if wall < self.mark {
            self.ahead.get_or_insert((self.mark, last_monotonic));
        }
        // From one fixed point, not from reading to reading: what is rounded off would add up.
        let own = self.ahead.map(|(mark, since)| mark + monotonic.saturating_sub(since));
        self.mark = match own {
            Some(own) if own > wall => own,
            _ => {
                self.ahead = None;
                wall
            }
        };
        Reading { now: self.mark, settled: monotonic >= self.paused_until }
    }

    /// Reads `clock` where another process that shares the store has given out `mark`, and goes on from there.
    pub fn read_above(&mut self, mark: Timestamp, clock: &(impl Clock + ?Sized)) -> Reading {
        let reading = self.read(clock);
        if mark > reading.now {
            self.mark = mark;
            self.ahead = Some((mark, clock.monotonic()));
        }
        Reading { now: self.mark, ..reading }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_instant_is_written_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_772_323_199_999, "2026-02-28T23:59:59.999Z"),
            (1_772_323_200_000, "2026-03-01T00:00:00.000Z"),
            (1_798_761_600_001, "2027-01-01T00:00:00.001Z"),
            (1_835_395_200_000, "2028-02-29T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_stands_still_at_its_mark() {
        let clock = ManualClock::new(Timestamp::from_millis(5_000));
        let mut store = StoreClock::new(Timestamp::from_millis(0));
        store.read(&clock);
        clock.set_wall(Timestamp::from_millis(1_000));
        assert_eq!(store.read(&clock).now, Timestamp::from_millis(5_000));
        clock.set_wall(Timestamp::from_millis(6_000));
        assert_eq!(store.read(&clock).now, Timestamp::from_millis(6_000));
    }

    #[test]
    fn a_clock_that_was_set_back_goes_on_from_its_mark() {
        let clock = ManualClock::new(Timestamp::from_millis(86_400_000));
        let mut store = StoreClock::new(Timestamp::default());
        store.read(&clock);
        clock.set_wall(Timestamp::from_millis(0));
        for minute in 0..3 {
            assert_eq!(store.read(&clock).now, Timestamp::from_millis(86_400_000) + MINUTE * minute);
            clock.advance(MINUTE);
        }
        // Also by steps that are each too short to be told.
        let before = store.read(&clock).now;
        for _ in 0..1_000 {
            clock.advance(Duration::from_micros(100));
            store.read(&clock);
        }
        assert_eq!(store.read(&clock).now, before + Duration::from_millis(100));
        // The wall clock leads again once it is ahead.
        clock.set_wall(Timestamp::from_millis(90_000_000));
        assert_eq!(store.read(&clock).now, Timestamp::from_millis(90_000_000));
        clock.advance(MINUTE);
        assert_eq!(store.read(&clock).now, Timestamp::from_millis(90_060_000));
    }

    #[test]
    fn the_mark_of_another_process_is_gone_on_from() {
        let clock = ManualClock::new(Timestamp::from_millis(1_000));
        let mut store = StoreClock::new(Timestamp::default());
        store.read(&clock);
        // However long this process did not look.
        clock.advance(MINUTE);
        let ahead = Timestamp::from_millis(9_000_000);
        assert_eq!(store.read_above(ahead, &clock).now, ahead);
        clock.advance(MINUTE);
        assert_eq!(store.read(&clock).now, ahead + MINUTE);
        assert_eq!(store.read_above(Timestamp::default(), &clock).now, ahead + MINUTE);
    }

    #[test]
    fn a_mark_from_the_last_run_is_kept() {
        let clock = ManualClock::new(Timestamp::from_millis(10));
        assert_eq!(StoreClock::new(Timestamp::from_millis(99)).read(&clock).now, Timestamp::from_millis(99));
    }

    #[test]
    fn after_a_jump_forward_nothing_is_taken_over_for_one_lease() {
        let clock = ManualClock::new(Timestamp::from_millis(0));
        let mut store = StoreClock::new(Timestamp::from_millis(0));
        store.observe_lease(MINUTE);
        assert!(store.read(&clock).settled);
        clock.set_wall(clock.now() + Duration::from_secs(3_600));
        assert!(!store.read(&clock).settled);
        clock.advance(MINUTE - Duration::from_millis(1));
        assert!(!store.read(&clock).settled);
        clock.advance(Duration::from_millis(1));
        assert!(store.read(&clock).settled);
    }

    #[test]
    fn time_that_really_passed_is_no_jump() {
        let clock = ManualClock::new(Timestamp::from_millis(0));
        let mut store = StoreClock::new(Timestamp::from_millis(0));
        store.observe_lease(MINUTE);
        store.read(&clock);
        clock.advance(Duration::from_secs(86_400));
        assert!(store.read(&clock).settled);
    }
}
