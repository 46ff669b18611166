//! Evidence that an initial state differs from the one given by the files of weights that a run names, and by the seed for drawn
//! tensors.

use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::verdict::{Base64, Claim, DataSlices, Hashes, ProvenInput, ProvenTensor, WeightsClaim};
use tiebreak_job::initial::{Drawn, weights_element, weights_layout};
use tiebreak_job::manifest::DataFile;
use tiebreak_record::commit::multiproof;
use tiebreak_record::commit::state::{self, tensor_digests};
use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_range, piece_values};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, Stored, data, initial};

/// The claim about the first element that differs, if the trainer published the initial state.
///
/// # Errors
/// If a file of weights cannot be read.
pub(super) fn claim(run: &Run, files: &[Stored]) -> Result<Option<Claim>, RunError> {
    let Ok(theirs) = initial::state(run) else { return Ok(None) };
    let drawn = Drawn::of(run.job(), run.key());
    let expected = initial::from_weights(files, run.job(), run.program(), &drawn)?;
    let table = run.program().state();
    let of_weights = run.program().released();
    let difference = (0..of_weights).find_map(|index| {
        let pairs = theirs[index].chunks_exact(4).zip(expected[index].chunks_exact(4));
        pairs.into_iter().position(|(x, y)| x != y).map(|element| (index, element))
    });
    let Some((index, element)) = difference else { return Ok(None) };
    let file = match drawn.has(&table[index].name) {
        true => None,
        false => match slices(run, files, &table[index], element as u64)? {
            None => return Ok(None),
            found => found,
        },
    };
    let state = proven(&table, &theirs, index, element);
    Ok(Some(Claim::Weights(Box::new(WeightsClaim { element, state, file }))))
}

/// The claim about the first element that the seed does not give, among the tensors that the job draws. `None` if there is no
/// such element, or the trainer did not publish the state.
pub(super) fn drawn_claim(run: &Run) -> Option<Claim> {
    let drawn = Drawn::of(run.job(), run.key());
    let table = run.program().state_with_init();
    if !table.iter().any(|(tensor, _)| drawn.has(&tensor.name)) {
        return None;
    }
    let theirs = initial::state(run).ok()?;
    let differs = |index: usize| {
        let (tensor, init) = &table[index];
        if !drawn.has(&tensor.name) {
            return None;
        }
        let expected = drawn.elements(index, [0, tensor.ty().len()], *init);
        let words = theirs[index].chunks_exact(4).zip(expected);
        words.into_iter().position(|(word, expected)| *word != expected.to_le_bytes())
    };
    let (index, element) =
        (0..table.len()).find_map(|index| differs(index).map(|element| (index, element)))?;
    let state = proven(&run.program().state(), &theirs, index, element);
    Some(Claim::Weights(Box::new(WeightsClaim { element, state, file: None })))
}

/// The slices of a file of weights that hold its header and an element of a state tensor. `None` if no file has the element: a
/// buffer without a file begins as the program says. `files`: the run's files of weights, in the job's order.
///
/// # Errors
/// If a file cannot be read.
pub fn slices<'a, F>(
    run: &Run,
    files: &'a [F],
    tensor: &StateTensor,
    element: u64,
) -> Result<Option<DataSlices>, RunError>
where
    Stored: From<&'a F>,
{
    let layout = weights_layout(run.job(), run.program());
    for (number, file) in files.iter().map(Stored::from).enumerate() {
        let mut file = opened(&file)?;
        if weights_element(&mut file, &layout, tensor, element).is_err() {
            continue;
        }
        if let Some(slices) = file.slices_read()? {
            return Ok(Some(DataSlices::from((number, slices))));
        }
    }
    Ok(None)
}

fn opened(file: &Stored) -> Result<DataFile, RunError> {
    let (manifest, tree) = data::kept_manifest(file)?;
    Ok(DataFile::new(file.path().to_path_buf(), manifest, tree, Box::new(file.open()?)))
}

/// The slice of a state's tensor that holds an element.
fn proven(table: &[StateTensor], state: &[Vec<u8>], index: usize, element: usize) -> ProvenInput {
    let digests = tensor_digests(table, state);
    let bytes = &state[index];
    let slice = element * 4 / SLICE_BYTES;
    let values = piece_values(bytes, SLICE_BYTES);
    ProvenInput {
        tensor: index as u32,
        commitment: ProvenTensor { digest: digests[index], proof: state::prove(table, &digests, index) },
        slices: vec![slice],
        bytes: Base64(bytes[piece_range(bytes.len(), SLICE_BYTES, slice)].to_vec()),
        siblings: Hashes(multiproof::prove(multiproof::blake3, &values, &[slice])),
    }
}
