//! The declared runs, and an index over the states that their records name.

use tiebreak_record::commit::digest::Digest;

/// A run that an operator declared, as far as matching needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The run id.
    pub run: Digest,
    /// The computation that the run is of.
    pub computation: Digest,
    /// The state digests of the records that the run's head covers: that after step n has index n.
    pub states: Vec<Digest>,
    /// The time at which a witness cosigned the run's head of size 1, in seconds since 1970.
    pub declared: Option<u64>,
}

impl Declared {
    /// The last step that the run's head covers.
    pub fn covered(&self) -> u32 {
        (self.states.len() as u32).saturating_sub(1)
    }
}

/// A state of a declared run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The run's index among the declared ones.
    pub run: usize,
    /// The step after which the run has this state.
    pub step: u32,
}

/// All states of declared runs, by their digests.
pub struct Index(Vec<(Digest, Place)>);

impl Index {
    /// The index over all states of these runs.
    pub fn of(runs: &[Declared]) -> Index {
        let places = runs.iter().enumerate().flat_map(|(run, declared)| {
            let steps = (0..).zip(&declared.states);
            steps.map(move |(step, state)| (*state, Place { run, step }))
        });
        let mut entries: Vec<_> = places.collect();
        entries.sort_unstable();
        Index(entries)
    }

    /// Every place at which a run has the state with this digest.
    pub fn find(&self, digest: &Digest) -> impl Iterator<Item = Place> {
        let first = self.0.partition_point(|(state, _)| state < digest);
        self.0[first..].iter().take_while(move |(state, _)| state == digest).map(|(_, place)| *place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_a_digest_is_found() {
        let run = |states: &[u8]| Declared {
            run: Digest([0; 32]),
            computation: Digest([0; 32]),
            states: states.iter().map(|&byte| Digest([byte; 32])).collect(),
            declared: None,
        };
        let runs = [run(&[1, 5, 3]), run(&[1, 2]), run(&[])];
        let index = Index::of(&runs);
        let found = |byte| index.find(&Digest([byte; 32])).map(|p| (p.run, p.step)).collect::<Vec<_>>();
        assert_eq!(found(1), [(0, 0), (1, 0)]);
        assert_eq!([found(2), found(3), found(5)], [[(1, 1)], [(0, 2)], [(0, 1)]]);
        assert!([0, 4, 6].into_iter().all(|byte| found(byte).is_empty()));
        assert_eq!((runs[0].covered(), runs[2].covered()), (2, 0));
    }
}
