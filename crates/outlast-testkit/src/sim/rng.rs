//! Chance that repeats itself: everything that a run decides comes from its seed.

/// A small, fast generator (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed, 0x5eed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    /// A number under `n`; 0 where `n` is 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True so many times in a thousand.
    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// An id as random as the seed is.
    pub(super) fn id(&mut self) -> outlast_core::TaskId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next().to_be_bytes());
        bytes[8..].copy_from_slice(&self.next().to_be_bytes());
        outlast_core::TaskId::from_bytes(bytes)
    }
}

fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One number of two, in which each bit of both counts.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    scramble(a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1656_67b1_9e37_79f9))
}

/// A number for a text.
pub(super) fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| mix(hash, u64::from(byte)))
}
