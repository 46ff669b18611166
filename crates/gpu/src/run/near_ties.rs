//! The search for near ties of native products where they are, so that neither results nor operands leave the device: norms, what
//! was found and, of products with a floor, absmaxes do. Where nothing else rounds them, the search does, which has each result
//! at hand. What was found is copied and looked at while the device goes on, if it can do both; what is kept for that, and for how
//! long, depends on the graph alone, so that a step finds the same memory free as the one before.

use std::collections::VecDeque;

use super::engine::{GpuEngine, Ready};
use super::memory::{Shown, Storage};
use super::pool::Buffer;
use crate::device::kernel::Kernel;
use crate::device::{Device, Dispatch, layout};
use crate::selftest;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::graph::{Graph, LoggedProduct, TensorId, View};
use tiebreak_contract::program::logged::Rounding;
use tiebreak_engine::near_tie_search::{Candidate, NearTieSearch, NearTiesFound};
use tiebreak_engine::{EngineError, Observer, Tensor};

/// One in so many results has a place among what is found, and a few more for small products; where more are near, the host
/// searches all. Thresholds that fit their kernels mark one in a hundred.
const SHARE: u64 = 16;
const PLACES_MIN: u64 = 256;
/// Words of something found, and those before the norms: the count.
const WORDS: u64 = 3;
const COUNT: u64 = 4;

/// Bytes of tensors that searches may keep alive before what they found is read.
const HELD_MAX: u64 = 512 << 20;
/// Searches that a device which copies beside its work may be ahead of the host.
const AHEAD_MAX: usize = 4;

/// The sizes of a search.
#[derive(Clone, Copy)]
struct Sizes {
    /// Rows of both views.
    rows: [u64; 2],
    /// Results, and what may be found among them.
    elements: u64,
    places: u64,
    /// Parts of a result.
    parts: u64,
}

impl Sizes {
    /// Those of a search in a tensor; none if there is nothing to search.
    fn of(graph: &Graph, output: TensorId, scan: &NearTieSearch) -> Option<Sizes> {
        let rows: [u64; 2] =
            [&scan.a, &scan.b].map(|view| view.dims[..3].iter().map(|&dim| u64::from(dim)).product());
        let elements = rows[0] * u64::from(scan.b.dims[2]);
        let parts = graph.tensor(output).len() as u64 / elements.max(1);
        (elements != 0).then(|| Sizes { rows, elements, places: (elements / SHARE).max(PLACES_MIN), parts })
    }

    /// Bytes of the count and the norms.
    fn side_bytes(&self) -> u64 {
        4 * (COUNT + self.rows[0] + self.rows[1])
    }

    /// Where the norms of each side begin.
    fn norms_at(&self) -> [u32; 2] {
        [COUNT, COUNT + self.rows[0]].map(|at| at as u32)
    }

    /// The kernels of a search. Every size fits a word: tensors that shaders see have fewer than 2^32 elements.
    fn kernels(&self, scan: &NearTieSearch, rounds: bool) -> [Kernel; 3] {
        let norms = |view: &View, side: usize| {
            let [_, b1, rows, k] = view.dims;
            let mut uniform = vec![b1, rows, k, view.offset];
            uniform.extend(view.strides);
            uniform.extend([self.rows[side] as u32, self.norms_at()[side], u32::from(side == 0)]);
            Kernel::RowNorms { uniform, rows: self.rows[side] as u32 }
        };
        let [norms_a, norms_b] = self.norms_at();
        let uniform = vec![
            self.elements as u32,
            scan.a.dims[2],
            scan.b.dims[2],
            u32::from(scan.bits),
            u32::from(scan.absmaxes.is_some()),
            scan.floor_offset as u32,
            scan.floor_min as u32,
            scan.norms.to_bits(),
            scan.relative.to_bits(),
            u32::from(self.parts == 2),
            norms_a,
            norms_b,
            self.places as u32,
        ];
        let search = Kernel::NearTies { uniform, elements: self.elements as u32, rounds };
        [norms(&scan.a, 0), norms(&scan.b, 1), search]
    }
}

/// A search that was started.
struct Started<D: Device> {
    index: usize,
    scan: NearTieSearch,
    sizes: Sizes,
    /// The copy of the count, the norms and the absmaxes; none if these are read when they are asked for. Before what it reads, which
    /// nobody else may have before it has ended.
    copying: Option<D::Copying>,
    /// The product and what it reads, in case all of it has to be shown.
    held: Vec<(TensorId, Tensor)>,
    /// Their bytes.
    bytes: u64,
    /// The count of what was found, then the norms.
    sides: Buffer<D::Memory>,
    found: Buffer<D::Memory>,
}

/// Searches of a graph that are under way, in order.
pub(crate) struct Searches<D: Device> {
    started: VecDeque<Started<D>>,
    held: u64,
}

impl<D: Device> Default for Searches<D> {
    fn default() -> Searches<D> {
        Searches { started: VecDeque::new(), held: 0 }
    }
}

impl<D: Device> Searches<D> {
    /// The next one that is to be finished, if enough are under way. Where each waits for the whole device they are finished together.
    fn due(&mut self, all: &mut bool) -> Option<Started<D>> {
        let first = self.started.front()?;
        let many = first.copying.is_some() && self.started.len() > AHEAD_MAX;
        if !(*all || many || self.held > HELD_MAX) {
            return None;
        }
        *all |= first.copying.is_none();
        self.held -= first.bytes;
        self.started.pop_front()
    }
}

/// Whether a search's grid is the one that a product is rounded to.
fn is_of(scan: &NearTieSearch, logged: &LoggedProduct) -> bool {
    let rule = logged.rule;
    let absmaxes = (rule.floor != 0).then_some([logged.absmaxes_a, logged.absmaxes_b]);
    (&scan.a, &scan.b, scan.absmaxes) == (&logged.a, &logged.b, absmaxes)
        && scan.bits == rule.bits
        && [scan.floor_offset, scan.floor_min] == [rule.floor_offset(logged.a.dims[3]), rule.floor_min()]
}

/// The product and what a search in it reads.
fn held(output: TensorId, scan: &NearTieSearch, values: &[Option<Tensor>]) -> Vec<(TensorId, Tensor)> {
    let mut read = vec![output, scan.a.tensor, scan.b.tensor];
    read.extend(scan.absmaxes.into_iter().flatten());
    let tensor = |id: TensorId| values[id.0 as usize].clone().expect("a node's inputs are there after it");
    read.into_iter().map(|id| (id, tensor(id))).collect()
}

/// The absmaxes among what a search holds, with their bytes.
fn absmaxes<'h, M: Send + Sync + 'static>(
    held: &'h [(TensorId, Tensor)],
    sizes: &Sizes,
) -> Vec<(&'h M, u64)> {
    let memory = |(_, tensor): &'h (TensorId, Tensor)| tensor.storage::<Storage<M>>().whole();
    held[3..].iter().map(memory).zip(sizes.rows.map(|rows| 4 * rows)).collect()
}

impl<D: Device> GpuEngine<D> {
    /// Starts a search in the output of node `index`, if the device has one; everything that the node reads is still there. What
    /// `rounding` gives is computed with it where that can be.
    pub(super) fn start_search(
        &mut self,
        graph: &Graph,
        index: usize,
        scan: NearTieSearch,
        rounding: Option<&Rounding>,
        values: &mut [Option<Tensor>],
        searches: &mut Searches<D>,
    ) -> Result<bool, EngineError> {
        let output = graph.nodes[index].output;
        let Some(sizes) = Sizes::of(graph, output, &scan).filter(|_| self.searches) else { return Ok(false) };
        let held = held(output, &scan, values);
        if held.iter().any(|(_, tensor)| tensor.storage::<Storage<D::Memory>>().pieces.len() > 1) {
            return Ok(false); // the search's kernels see whole tensors
        }
        let rounding = rounding.filter(|rounding| is_of(&scan, &graph.logged[rounding.number]));
        let rounded = rounding.map(|rounding| graph.nodes[rounding.node].output);
        let rounded = rounded.filter(|id| self.cut(graph.tensor(*id)).is_whole());
        let mut data = Vec::new();
        let kernels = sizes.kernels(&scan, rounded.is_some());
        let Some(kernels) = self.search_kernels(&kernels, &mut data)? else { return Ok(false) };
        // The same products come back with every micro-batch.
        self.keep_uniforms(&data)?;

        let take = |bytes| self.pool.take(bytes, false, |bytes| self.device.allocate(bytes));
        let (found, sides) = (take(4 * WORDS * sizes.places)?, take(sizes.side_bytes())?);
        let rounded = rounded.map(|id| Ok::<_, EngineError>((id, self.blank_of(graph, id)?))).transpose()?;
        let buffer = |i: usize| {
            let storage = held[i].1.storage::<Storage<D::Memory>>();
            (storage.whole(), layout::bytes(&storage.ty, self.variant))
        };
        let (to_sides, to_found) =
            ((sides.memory(), sizes.side_bytes()), (found.memory(), 4 * WORDS * sizes.places));
        // Without a floor nobody reads absmaxes.
        let of_absmaxes = if scan.absmaxes.is_some() { [3, 4] } else { [0, 0] };
        let [absmaxes_a, absmaxes_b] = of_absmaxes.map(buffer);
        let mut near = vec![buffer(0), absmaxes_a, absmaxes_b, to_sides, to_found];
        near.extend(rounded.iter().map(|(_, storage)| (storage.whole(), 4 * sizes.elements)));
        let buffers = [vec![buffer(1), to_sides], vec![buffer(2), to_sides], near];
        let uniforms = self.kept(&data);
        let dispatches = kernels.iter().zip(buffers).map(|(ready, buffers)| {
            let (offset, bytes) = ready.uniform;
            Dispatch {
                pipeline: &ready.pipeline,
                uniform: (uniforms, offset, bytes),
                buffers,
                groups: ready.groups,
            }
        });
        self.device.submit(&dispatches.collect::<Vec<_>>())?;
        let from = [vec![to_sides], absmaxes(&held, &sizes)].concat();
        let copying = self.device.begin_read(&from)?;
        let bytes = (0..held.len()).map(|i| buffer(i).1).sum();
        searches.held += bytes;
        if let Some((id, storage)) = rounded {
            values[id.0 as usize] = Some(Tensor::new(storage));
            self.rounded += 1;
        }
        searches.started.push_back(Started { index, scan, sizes, copying, held, bytes, sides, found });
        Ok(true)
    }

    /// A search's kernels made ready, one dispatch each; none if the device has none of its own.
    fn search_kernels(
        &mut self,
        kernels: &[Kernel],
        data: &mut Vec<u8>,
    ) -> Result<Option<Vec<Ready<D::Pipeline>>>, EngineError> {
        let mut made = Vec::new();
        for kernel in kernels {
            let Some(ready) = self.ready(kernel, data)? else { return Ok(None) };
            made.extend(ready);
        }
        Ok(Some(made))
    }

    /// Tells the observer what the searches found: of the first ones, if many are under way or they hold much memory, or of `all`.
    pub(super) fn finish_searches(
        &mut self,
        graph: &Graph,
        searches: &mut Searches<D>,
        mut all: bool,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        while let Some(mut search) = searches.due(&mut all) {
            let node = &graph.nodes[search.index];
            if let Some(found) = self.found(&mut search)? {
                observer.found(search.index, node, found)?;
                continue;
            }
            // More was near than there is room for: the observer looks for itself.
            let mut values = vec![None; graph.tensors.len()];
            let output = search.held[0].1.clone();
            for (id, tensor) in search.held {
                values[id.0 as usize] = Some(tensor);
            }
            let mut shown = Ok(None);
            let mut inputs = Shown { engine: self, values: &values };
            self.show(output.storage(), &mut |bytes| {
                shown = observer.node(search.index, node, bytes, &mut inputs);
            })?;
            if shown?.is_some() {
                let reason = format!("{}: an observer changed what it asked to have searched", node.operator);
                return Err(self.fault(reason));
            }
        }
        Ok(())
    }

    /// What a search found; none if there was no room for all.
    fn found(&self, search: &mut Started<D>) -> Result<Option<NearTiesFound>, EngineError> {
        let Started { sizes, scan, .. } = search;
        let [rows_a, rows_b] = sizes.rows.map(|rows| rows as usize);
        let mut words: Vec<u32> = Vec::new();
        let mut take = |bytes: &[u8]| words.extend(words_from_bytes(DType::U32, bytes));
        match search.copying.take() {
            Some(copying) => self.device.end_read(copying, &mut take)?,
            None => {
                self.device.read(search.sides.memory(), sizes.side_bytes(), &mut take)?;
                for (memory, bytes) in absmaxes(&search.held, sizes) {
                    self.device.read(memory, bytes, &mut take)?;
                }
            }
        }
        let count = u64::from(words[0]);
        if count > sizes.places {
            return Ok(None);
        }
        let mut norms_a = words.split_off(COUNT as usize);
        let mut norms_b = norms_a.split_off(rows_a);
        let mut absmaxes_a = norms_b.split_off(rows_b);
        let norms = [norms_a, norms_b].map(|norms| norms.into_iter().map(f32::from_bits).collect());
        let absmaxes = scan.absmaxes.is_some().then(|| {
            let absmaxes_b = absmaxes_a.split_off(rows_a);
            [absmaxes_a, absmaxes_b]
        });
        let mut candidates = Vec::with_capacity(count as usize);
        if count != 0 {
            // What was copied says that the search has ended.
            self.device.read_beside(search.found.memory(), 4 * WORDS * count, &mut |bytes| {
                let words = words_from_bytes(DType::U32, bytes);
                let found = words.as_chunks::<{ WORDS as usize }>().0.iter();
                candidates.extend(found.map(|&[place, high, rounding_error]| Candidate {
                    place,
                    high,
                    rounding_error,
                }));
            })?;
        }
        Ok(Some(NearTiesFound { norms, absmaxes, candidates }))
    }

    /// Compares both ways to round a product on a grid, if the device has both and has not shown it before: what the search rounds is
    /// what the contract's shader rounds. One wrong bit there would make an honest trainer's run one that no auditor can replay.
    ///
    /// # Errors
    /// If they differ.
    pub(super) fn check_rounding(&mut self, rule: GridRule) -> Result<(), EngineError> {
        let search = Kernel::NearTies { uniform: Vec::new(), elements: 0, rounds: true };
        if self.device.make(&search)?.is_none() || !self.tried.insert(rule) {
            return Ok(());
        }
        let (searches, rounded) = (std::mem::replace(&mut self.searches, true), self.rounded);
        let same = selftest::rounds_well(self, rule);
        (self.searches, self.rounded) = (searches, rounded);
        if same? {
            Ok(())
        } else {
            Err(self.untrusted("products rounded by the search for near ties differ from the shader's"))
        }
    }
}
