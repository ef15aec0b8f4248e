//! Chance that can be had again: what a test did by its seed it does again by the same one.

/// Numbers that follow from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Seed(pub u64);

impl Seed {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// One of these two, or between them.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True once in so many.
    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Puts them into another order.
    pub fn shuffle<T>(&mut self, deck: &mut [T]) {
        for last in (1..deck.len()).rev() {
            deck.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
