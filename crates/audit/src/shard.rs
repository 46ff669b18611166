//! Shards of an audit: the segments of one plan, divided among tasks that do not know of each other.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The most shards of an audit. Reports of others say how many there are, and those that lack are listed.
pub const SHARDS_MAX: u32 = 1 << 16;

/// One shard of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Named")]
pub struct Shard {
    /// The shard's number, from 1.
    pub number: u32,
    /// The number of shards.
    pub of: u32,
}

impl Shard {
    /// Shard `number` of `of`, which are [`SHARDS_MAX`] at most; `None` if there is no such shard.
    pub fn new(number: u32, of: u32) -> Option<Shard> {
        (of <= SHARDS_MAX && (1..=of).contains(&number)).then_some(Shard { number, of })
    }

    /// True if the shard has the segment with this index in the plan: segments are dealt in turn.
    pub(crate) fn has(self, segment: usize) -> bool {
        segment as u64 % u64::from(self.of) == u64::from(self.number) - 1
    }
}

/// A shard as a file names it, which may be none.
#[derive(Deserialize)]
struct Named {
    number: u32,
    of: u32,
}

impl TryFrom<Named> for Shard {
    type Error = String;

    fn try_from(Named { number, of }: Named) -> Result<Shard, String> {
        Shard::new(number, of)
            .ok_or_else(|| format!("there is no shard {number} of {of}, of {SHARDS_MAX} at most"))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// The shards of a division into `of` that are not among these, ascending.
pub fn missing(of: u32, there: impl IntoIterator<Item = Shard>) -> Vec<Shard> {
    let there: BTreeSet<u32> =
        there.into_iter().filter(|shard| shard.of == of).map(|shard| shard.number).collect();
    (1..=of).filter(|number| !there.contains(number)).map(|number| Shard { number, of }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_is_in_one_shard() {
        let shards: Vec<Shard> = (0..=4).filter_map(|number| Shard::new(number, 3)).collect();
        assert_eq!(shards.len(), 3);
        assert_eq!((Shard::new(1, 0), Shard::new(1, SHARDS_MAX + 1)), (None, None));
        let read = |text: &str| serde_json::from_str::<Shard>(text).map_err(|error| error.to_string());
        assert_eq!(read(r#"{"number":2,"of":3}"#), Ok(shards[1]));
        for none in [r#"{"number":0,"of":3}"#, r#"{"number":4,"of":3}"#, r#"{"number":1,"of":4000000000}"#] {
            assert!(read(none).unwrap_err().starts_with("there is no shard"), "{none}");
        }
        for segment in 0..20 {
            assert_eq!(shards.iter().filter(|shard| shard.has(segment)).count(), 1);
        }
        let missing = |shards: &[Shard]| -> Vec<String> {
            missing(3, shards.iter().copied()).iter().map(Shard::to_string).collect()
        };
        assert_eq!(missing(&shards[..1]), ["2/3", "3/3"]);
        assert_eq!(missing(&shards), [""; 0]);
        // A shard of another division is none of this one.
        assert_eq!(missing(&[shards[0], Shard { number: 2, of: 2 }]), ["2/3", "3/3"]);
    }
}
