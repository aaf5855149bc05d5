//! Digests of sets of items, such as the test items of a division, by the hash of each item.

/// Digest of one or several sets. It does not depend on the order within a set.
#[derive(Debug, Default)]
pub struct SetDigest(blake3::Hasher);

impl SetDigest {
    /// Adds a set: the hash of each of its items.
    pub fn add(&mut self, items: impl Iterator<Item = u64>) {
        let [mut count, mut sum, mut products] = [0u64; 3];
        for item in items {
            count += 1;
            sum = sum.wrapping_add(item);
            // Changes of several items that cancel out in one sum do not in the other.
            products = products.wrapping_add(item.wrapping_mul(item.rotate_left(32) | 1));
        }
        [count, sum, products].iter().for_each(|number| {
            self.0.update(&number.to_le_bytes());
        });
    }

    /// 16 hexadecimal digits.
    pub fn finish(&self) -> String {
        self.0.finalize().to_hex()[..16].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sets: &[&[u64]]) -> String {
        let mut digest = SetDigest::default();
        sets.iter().for_each(|set| digest.add(set.iter().copied()));
        digest.finish()
    }

    #[test]
    fn items_count_and_their_order_does_not() {
        assert_eq!(of(&[&[3, 5, 7], &[9]]), of(&[&[7, 3, 5], &[9]]));
        let others: [&[&[u64]]; 6] = [
            &[&[3, 5], &[7, 9]],
            &[&[3, 5, 7]],
            &[&[3, 5, 7], &[]],
            &[&[4, 4, 7], &[9]],
            &[&[0, 3, 5, 7], &[9]],
            &[&[9], &[3, 5, 7]],
        ];
        for other in others {
            assert_ne!(of(other), of(&[&[3, 5, 7], &[9]]), "{other:?}");
        }
        assert_eq!(of(&[]).len(), 16);
    }
}
