//! Philox 4×32-10 (Salmon et al. 2011): random numbers as a pure function of key and counter, so that any part
//! of a mask can be drawn by any thread, at any time, again.

/// Four random words of `counter` under `key`.
#[inline(always)]
pub fn philox(key: u64, counter: u64) -> [u32; 4] {
    const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let mut state = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let products =
            [u64::from(MULTIPLIERS[0]) * u64::from(state[0]), u64::from(MULTIPLIERS[1]) * u64::from(state[2])];
        state = [
            (products[1] >> 32) as u32 ^ state[1] ^ key[0],
            products[1] as u32,
            (products[0] >> 32) as u32 ^ state[3] ^ key[1],
            products[0] as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    state
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// First known answer of the authors' Random123 distribution (`kat_vectors`, philox4x32 10).
    #[test]
    fn known_answer() {
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }
}
