//! Openings of shards of a state: ranges of tensors with the proof that the record of a step commits them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::computation::Computation;
use tiebreak_contract::parallel;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::salts::{Kind, salted};
use tiebreak_record::commit::tensor::{
    Hash, SLICE_BYTES, digest_from_root, piece_count, piece_range, piece_value, piece_values,
};
use tiebreak_record::commit::{Malformed, beginning, multiproof, state};

/// The name and version of these openings.
pub const FORMAT: &str = "tiebreak shard opening 1";
/// The most bytes of an opening's text.
pub const SHARD_OPENING_MAX: u64 = 1 << 28;
/// The most bytes that an opening shows.
pub const SHARD_SHOWN_MAX: u64 = 1 << 26;
/// The most ranges that an opening shows.
pub const RANGES_MAX: usize = 1 << 14;

/// A shard of the state after a step, opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardOpening {
    /// The name and version, [`FORMAT`].
    pub format: String,
    /// The run id.
    pub run: Digest,
    /// The step; 0 for the initial state.
    pub step: u32,
    /// The ranges, in the order of the shard.
    pub ranges: Vec<ShownRange>,
}

/// Elements of one tensor with the slices that hold them, opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShownRange {
    /// The tensor's name in the state.
    pub tensor: String,
    /// The first element that is meant, of four bytes each.
    pub first: u64,
    /// The number of elements that are meant.
    pub count: u32,
    /// The slices of 1024 bytes that hold these elements, one after another.
    pub bytes: Base64,
    /// The hashes that prove the slices in the tensor's BLAKE3 tree ([`multiproof`]).
    pub siblings: Vec<Digest>,
    /// The tensor's salt at this step; null in a run that hides nothing.
    pub salt: Option<Digest>,
    /// The hashes that prove the tensor in the state ([`state::prove`]).
    pub proof: Vec<Digest>,
}

/// Elements that somebody wants to show: the tensor's index in the state, the first element, and the number of elements.
pub type Place = (usize, u64, u32);

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("shard opening", why)
}

/// The first byte and the byte behind the last of elements, and the first slice and the slice behind the last that hold them.
fn bounds(tensor: &StateTensor, first: u64, count: u32) -> Result<([usize; 2], [usize; 2]), Malformed> {
    let elements = tensor.ty().len() as u64;
    let end = first.checked_add(count.into()).filter(|end| count > 0 && *end <= elements);
    let Some(end) = end else {
        let name = &tensor.name;
        return Err(wrong(format!("{name} has {elements} elements; {count} from {first} on are wanted")));
    };
    let [first, end] = [first, end].map(|element| 4 * element as usize);
    Ok(([first, end], [first / SLICE_BYTES, end.div_ceil(SLICE_BYTES)]))
}

/// Refuses more ranges, or more bytes in their slices, than an opening shows.
fn check_size(ranges: usize, slices: usize) -> Result<(), Malformed> {
    let bytes = (slices * SLICE_BYTES) as u64;
    if ranges == 0 || ranges > RANGES_MAX || bytes > SHARD_SHOWN_MAX {
        let why = format!(
            "it has {ranges} ranges of {bytes} bytes; 1 to {RANGES_MAX} of {SHARD_SHOWN_MAX} bytes at most are shown"
        );
        return Err(wrong(why));
    }
    Ok(())
}

impl ShardOpening {
    /// The opening of places of a run's state after a step. `tensors` are the canonical bytes of all tensors.
    ///
    /// # Errors
    /// If a place is not in the state, or the places are more than an opening shows.
    ///
    /// # Panics
    /// If `tensors` are not those of the state's table.
    pub fn of(
        run: Digest,
        computation: &Computation,
        step: u32,
        tensors: &[Vec<u8>],
        places: &[Place],
    ) -> Result<ShardOpening, Malformed> {
        let table = computation.program.state();
        let mut slices = 0;
        for &(index, first, count) in places {
            let tensor = table.get(index).ok_or_else(|| {
                wrong(format!("the state has {} tensors; number {index} is wanted", table.len()))
            })?;
            let [from, to] = bounds(tensor, first, count)?.1;
            slices += to - from;
        }
        check_size(places.len(), slices)?;
        let plain = state::tensor_digests(&table, tensors);
        let salts = computation.salts.as_ref();
        let leaves = salts.map_or(plain.clone(), |salts| salts.each(Kind::State, step.into(), &plain));
        let indices: Vec<usize> = places.iter().map(|place| place.0).collect();
        let proofs = state::prove_each(&table, &leaves, &indices);
        let pieces: BTreeMap<usize, Vec<Hash>> = BTreeSet::from_iter(indices)
            .into_iter()
            .map(|index| (index, piece_values(&tensors[index], SLICE_BYTES)))
            .collect();
        let range = |number: usize| {
            let (index, first, count) = places[number];
            let (tensor, bytes) = (&table[index], &tensors[index]);
            let [from, to] = bounds(tensor, first, count)?.1;
            let wanted: Vec<usize> = (from..to).collect();
            let siblings = multiproof::prove(multiproof::blake3, &pieces[&index], &wanted);
            let shown = from * SLICE_BYTES..bytes.len().min(to * SLICE_BYTES);
            let salt = salts.map(|salts| Digest(salts.salt(Kind::State, step.into(), index as u64)));
            Ok(ShownRange {
                tensor: tensor.name.clone(),
                first,
                count,
                bytes: Base64(bytes[shown].to_vec()),
                siblings: siblings.into_iter().map(Digest).collect(),
                salt,
                proof: proofs[number].clone(),
            })
        };
        let ranges = parallel::map(places.len(), range).into_iter().collect::<Result<_, Malformed>>()?;
        Ok(ShardOpening { format: FORMAT.into(), run, step, ranges })
    }

    /// The text of an opening's file.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("an opening has no maps with keys that are no text")
    }

    /// Reads the text of an opening's file.
    ///
    /// # Errors
    /// If it is malformed, of another version, or too long.
    pub fn from_text(text: &str) -> Result<ShardOpening, Malformed> {
        if text.len() as u64 > SHARD_OPENING_MAX {
            return Err(Malformed::TooLarge { what: "shard opening", limit: SHARD_OPENING_MAX });
        }
        let opening: ShardOpening = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if opening.format != FORMAT {
            let found = beginning(&opening.format);
            return Err(wrong(format!("its format is {found:?}; {FORMAT:?} is wanted")));
        }
        let slices = opening.ranges.iter().map(|range| range.bytes.0.len().div_ceil(SLICE_BYTES)).sum();
        check_size(opening.ranges.len(), slices)?;
        Ok(opening)
    }

    /// The bytes of each range, after checking that a state with this digest has them. `hides` says whether the run's
    /// commitments hide.
    ///
    /// # Errors
    /// If the state is another one, a range is not in it, or the opening contradicts itself.
    pub fn shown(&self, table: &[StateTensor], hides: bool, state: &Digest) -> Result<Vec<&[u8]>, Malformed> {
        check_size(self.ranges.len(), 0)?;
        self.ranges.iter().map(|range| range.shown(table, hides, state)).collect()
    }
}

impl ShownRange {
    /// The bytes that are meant, after checking that a state with this digest has them.
    fn shown(&self, table: &[StateTensor], hides: bool, due: &Digest) -> Result<&[u8], Malformed> {
        let name = beginning(&self.tensor);
        let index = table.iter().position(|tensor| tensor.name == self.tensor);
        let index = index.ok_or_else(|| wrong(format!("{name:?} is no tensor of the state")))?;
        if self.salt.is_some() != hides {
            let [has, due] = [self.salt.is_some(), hides].map(|has| if has { "a salt" } else { "no salt" });
            return Err(wrong(format!("{name} comes with {has}; {due} is due in this run")));
        }
        let ty = table[index].ty();
        let ([first, end], [from, to]) = bounds(&table[index], self.first, self.count)?;
        let shown = from * SLICE_BYTES..ty.bytes().min(to * SLICE_BYTES);
        let found = self.bytes.0.len();
        if found != shown.len() {
            return Err(wrong(format!("{name} comes with {found} bytes; {} bytes are due", shown.len())));
        }
        let slices = piece_count(ty.bytes(), SLICE_BYTES);
        let pieces: Vec<(usize, Hash)> = (from..to)
            .map(|piece| {
                let range = piece_range(ty.bytes(), SLICE_BYTES, piece);
                let bytes = &self.bytes.0[range.start - shown.start..range.end - shown.start];
                (piece, piece_value(bytes, SLICE_BYTES, piece, slices))
            })
            .collect();
        let siblings: Vec<Hash> = self.siblings.iter().map(|hash| hash.0).collect();
        let root = multiproof::root(multiproof::blake3, slices, &pieces, &siblings)?;
        let plain = digest_from_root(&ty, &root);
        let leaf = self.salt.map_or(plain, |salt| salted(&salt.0, &plain));
        let state = state::digest_from_proof(table, index, &leaf, &self.proof)?;
        if state != *due {
            return Err(wrong(format!("{name} gives the state digest {}", state.not(due))));
        }
        Ok(&self.bytes.0[first - shown.start..end - shown.start])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{CONTRACT, ComputationSummary, program_digest};
    use tiebreak_record::commit::salts::SaltKey;

    /// A computation of a small perceptron that hides by a key, or hides nothing.
    fn computation(key: Option<u8>) -> Computation {
        let job = format!(
            r#"
steps = 8
model = {{ kind = "mlp", inputs = 40, hidden = [30], classes = 3 }}
data = {{ kind = "idx", images = "images", labels = "labels", copy = false }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 0.0 }}
schedule = {{ peak = 0.5 }}
batch = {{ micro_batch = 2, micro_batches = 3 }}
commit = {{ granularity = "step", scheme = {} }}
"#,
            u8::from(key.is_some())
        );
        let (_, program) = Computation::parsed("job", &job, None).unwrap();
        let summary = ComputationSummary {
            contract: CONTRACT.into(),
            challenge: None,
            program: program_digest(&program),
            data: Digest([1; 32]),
            initial: Digest([2; 32]),
        };
        match key.map(|key| SaltKey::new([key; 32])) {
            None => Computation::derive("job", &job, None, summary).unwrap(),
            salts => Computation::hidden("job", &job, None, summary, salts).unwrap(),
        }
    }

    /// A state with other bytes for each `mark`, and its digest after a step.
    fn state_of(computation: &Computation, step: u32, mark: usize) -> (Vec<Vec<u8>>, Digest) {
        let table = computation.program.state();
        let byte = |tensor: usize, i: usize| (i * 31 + 7 * tensor + mark) as u8;
        let tensors: Vec<Vec<u8>> = table
            .iter()
            .enumerate()
            .map(|(tensor, one)| (0..one.ty().bytes()).map(|i| byte(tensor, i)).collect())
            .collect();
        let digests = state::tensor_digests(&table, &tensors);
        let digest = computation.state_digest(step, &table, &digests);
        (tensors, digest)
    }

    #[test]
    fn a_shard_is_shown_and_no_other_bytes_pass() {
        for key in [None, Some(7)] {
            let computation = computation(key);
            let table = computation.program.state();
            let (tensors, digest) = state_of(&computation, 3, 0);
            let sizes: Vec<u32> = table.iter().map(|tensor| tensor.ty().len() as u32).collect();
            let large = sizes.iter().position(|&size| size == 1200).unwrap();
            let last = table.len() - 1;
            let places = [(large, 0, 1), (large, 255, 2), (large, 700, 500), (last, 0, sizes[last])];
            let opening = ShardOpening::of(Digest([9; 32]), &computation, 3, &tensors, &places).unwrap();
            let bytes = |&(index, first, count): &Place| {
                &tensors[index][4 * first as usize..4 * (first as usize + count as usize)]
            };
            let due: Vec<&[u8]> = places.iter().map(bytes).collect();
            assert_eq!(opening.shown(&table, key.is_some(), &digest), Ok(due));
            assert_eq!(ShardOpening::from_text(&opening.to_text()), Ok(opening.clone()));
            // Slices that are not meant are not there.
            assert_eq!(opening.ranges[0].bytes.0, tensors[large][..1024]);
            assert_eq!(opening.ranges[1].bytes.0, tensors[large][..2048]);

            // Another step's state, another state, and a reader who takes the run for one of the other scheme.
            let fails = |opening: &ShardOpening, digest: &Digest| {
                opening.shown(&table, key.is_some(), digest).is_err()
            };
            for (step, mark) in [(4, 1), (3, 1)] {
                assert!(fails(&opening, &state_of(&computation, step, mark).1), "{step} {mark}");
            }
            let same_later = state_of(&computation, 4, 0).1;
            assert_eq!(fails(&opening, &same_later), key.is_some(), "salts are of a step");
            assert!(opening.shown(&table, key.is_none(), &digest).is_err());
            let changes: [&dyn Fn(&mut ShownRange); 11] = [
                &|range| range.bytes.0[0] ^= 1,
                &|range| range.bytes.0.truncate(1),
                &|range| range.first += 1024,
                &|range| range.first = u64::MAX,
                &|range| range.count = 0,
                &|range| range.count = u32::MAX,
                &|range| range.siblings.push(Digest([0; 32])),
                &|range| range.proof.truncate(1),
                &|range| range.proof[0].0[0] ^= 1,
                &|range| range.tensor += "x",
                &|range| range.salt = range.salt.map_or(Some(Digest([1; 32])), |_| None),
            ];
            for (number, change) in changes.iter().enumerate() {
                for range in 0..places.len() {
                    let mut other = opening.clone();
                    change(&mut other.ranges[range]);
                    assert!(fails(&other, &digest), "change {number} of range {range}");
                }
            }
            // A range of one tensor is not one of another tensor of the same shape.
            let twin = (0..table.len()).find(|&other| other != large && sizes[other] == 1200).unwrap();
            let mut other = opening.clone();
            other.ranges[0].tensor = table[twin].name.clone();
            assert!(fails(&other, &digest));
            for places in [&[][..], &[(large, 1200, 1)], &[(large, 0, 0)], &[(table.len(), 0, 1)]] {
                assert!(ShardOpening::of(Digest([9; 32]), &computation, 3, &tensors, places).is_err());
            }
        }
    }

    #[test]
    fn openings_are_bounded() {
        let computation = computation(Some(7));
        let (tensors, _) = state_of(&computation, 3, 0);
        let many = vec![(0, 0, 1); RANGES_MAX + 1];
        assert!(ShardOpening::of(Digest([9; 32]), &computation, 3, &tensors, &many).is_err());
        let one = ShardOpening::of(Digest([9; 32]), &computation, 3, &tensors, &many[..1]).unwrap();
        let text = one.to_text();
        let none = ShardOpening { ranges: Vec::new(), ..one.clone() };
        let long = one.ranges[0].clone();
        let long = ShownRange { bytes: Base64(vec![0; SHARD_SHOWN_MAX as usize + 1]), ..long };
        let long = ShardOpening { ranges: vec![long], ..one };
        for text in [
            none.to_text(),
            long.to_text(),
            text.replace("opening 1", "opening 2"),
            text.replace("\"step\"", "\"more\": 1, \"step\""),
            text[1..].into(),
        ] {
            assert!(ShardOpening::from_text(&text).is_err());
        }
    }
}
