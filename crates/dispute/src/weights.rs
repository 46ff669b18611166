//! Verdicts on an initial state that contradicts the files of weights which a run names, or the seed: one element.

use std::path::PathBuf;

use super::check::{Shown, shown};
use super::evidence::context::Context;
use super::evidence::proven::wrong;
use super::evidence::tile::check_slices;
use super::fact::Fact;
use super::verdict::{DataSlices, WeightsClaim};
use tiebreak_contract::program::step::StateTensor;
use tiebreak_job::initial::{Drawn, InitialOrigin, weights_element, weights_layout};
use tiebreak_job::manifest::{self, DataFile, FileManifest};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_record::commit::{Malformed, tensor};

impl Context {
    /// The result of a claim about record 0's state.
    pub fn weights(
        &self,
        state: &Digest,
        claim: &WeightsClaim,
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        let (table, index) = (self.computation.program.state(), claim.state.tensor as usize);
        let of_weights = self.computation.program.released();
        let tensor = table.get(index).filter(|_| index < of_weights);
        let tensor = tensor.ok_or_else(|| {
            wrong(format!("it names state tensor {index}; the first {of_weights} are parameters and buffers"))
        })?;
        self.state_commitment(state, &table, index, &claim.state.commitment)?;
        check_slices(&tensor.ty(), &claim.state)?;
        let (element, len) = (claim.element, tensor.ty().bytes());
        let first = element.checked_mul(4).filter(|first| *first < len);
        let first = first.ok_or_else(|| {
            wrong(format!("it names element {element}; {} has {} elements", tensor.name, len / 4))
        })?;
        let (slices, due) = (&claim.state.slices, first / SLICE_BYTES);
        if *slices != [due] {
            let (count, found) = (slices.len(), slices.first());
            let why = format!("it carries {count} slices of {}, the first {found:?}", tensor.name);
            return Err(wrong(format!("{why}; element {element} is in slice {due}")));
        }
        let start = first - tensor::piece_range(len, SLICE_BYTES, first / SLICE_BYTES).start;
        let word = claim.state.bytes.0[start..].first_chunk::<4>().copied().map(u32::from_le_bytes);
        let word = word.ok_or_else(|| wrong(format!("slice {due} ends before element {element} does")))?;
        steps.push(format!("element {element} of {} is under record 0's state", tensor.name));
        let fact = |drawn, due| Fact::InitialElement {
            tensor: tensor.name.clone(),
            element,
            drawn,
            patterns: [word, due],
        };
        let drawn = Drawn::of(&self.computation.job, self.computation.key());
        let InitialOrigin::Weights { files } = &self.origin else {
            let source = self.origin.source();
            return Err(wrong(format!(
                "the run begins from {source}, and the claim is about files of weights"
            )));
        };
        match (&claim.file, drawn.has(&tensor.name)) {
            (Some(file), false) => {
                let expected = self.in_weights(files, tensor, element, file)?;
                steps.push(format!("the file's header and element {element} are under the file's root"));
                Ok(shown(0, word == expected, fact(false, expected)))
            }
            (None, true) => {
                let (_, init) = self.computation.program.state_with_init().swap_remove(index);
                let expected = drawn.elements(index, [element, 1], init)[0];
                steps.push(format!("the job draws {} from the seed", tensor.name));
                Ok(shown(0, word == expected, fact(true, expected)))
            }
            // A file may have the tensor too, with other numbers.
            (Some(file), true) => Err(wrong(format!(
                "it carries file {} of the weights, and the job draws {} from the seed",
                file.file, tensor.name
            ))),
            (None, false) => Err(wrong(format!(
                "it carries no file of weights, and the job takes {} from one",
                tensor.name
            ))),
        }
    }

    /// Element `element` of a state tensor, from the slices of a file of weights that the run names.
    fn in_weights(
        &self,
        files: &[FileManifest],
        tensor: &StateTensor,
        element: usize,
        file: &DataSlices,
    ) -> Result<u32, Malformed> {
        manifest::check(files)?;
        let manifest = files.get(file.file).ok_or_else(|| {
            let count = files.len();
            wrong(format!("it names file {} of the weights; the run has {count}, from 0 on", file.file))
        })?;
        let path = PathBuf::from(format!("weights-{}", file.file));
        let file = DataFile::from_slices(path, manifest.clone(), &file.parts().1);
        let layout = weights_layout(&self.computation.job, &self.computation.program);
        let word = file.and_then(|mut file| weights_element(&mut file, &layout, tensor, element as u64));
        word.map_err(|error| wrong(error.to_string()))
    }
}
