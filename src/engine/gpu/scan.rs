//! The search for near ties of native products where they are, so that neither results nor operands leave the device: norms, what
//! was found and, of products with a floor, magnitudes do. Where nothing else rounds them, the search does, which has each result
//! at hand. What was found is copied and looked at while the device goes on, if it can do both; what is kept for that, and for how
//! long, depends on the graph alone, so that a step finds the same memory free as the one before.

use std::collections::VecDeque;

use super::device::{Device, Dispatch};
use super::pool::Buffer;
use super::{Accelerated, Shown, Storage, layout};
use crate::engine::scan::{Candidate, Found, Scan};
use crate::engine::{EngineError, Observer, Tensor};
use crate::program::graph::{Graph, LoggedProduct, TensorId, View};
use crate::program::logged::Rounding;

/// Kernels of a device for this, each with what a workgroup takes: rows of a view, elements of a product.
pub struct Kernels<P> {
    pub norms: (P, u32),
    pub near: (P, u32),
    /// The search that writes each result's value on the grid besides.
    pub round: (P, u32),
}

/// One in so many results has a place among what is found, and a few more for small products; where more are near, the host
/// searches all. Thresholds that fit their kernels mark one in a hundred.
const SHARE: u64 = 16;
const PLACES_MIN: u64 = 256;
/// From one dispatch's uniform data to the next one's.
const UNIFORM: u64 = 256;
/// Words of something found, and those before the norms: the count.
const WORDS: u64 = 3;
const COUNT: u64 = 4;

/// Bytes of tensors that searches may keep alive before what they found is read.
const HELD_MAX: u64 = 512 << 20;
/// Searches that a device which copies beside its work may be ahead of the host.
const AHEAD_MAX: usize = 4;

/// A search that was started.
struct Started<D: Device> {
    index: usize,
    scan: Scan,
    /// The copy of the count, the norms and the magnitudes; none if these are read when they are asked for. Before what it reads, which
    /// nobody else may have before it has ended.
    copying: Option<D::Copying>,
    /// The product and what it reads, in case all of it has to be shown.
    held: Vec<(TensorId, Tensor)>,
    /// Their bytes.
    bytes: u64,
    rows: [u64; 2],
    places: u64,
    /// The count of what was found, then the norms.
    sides: Buffer<D::Memory>,
    found: Buffer<D::Memory>,
}

/// Searches of a graph that are under way, in order.
pub struct Searches<D: Device> {
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

/// Rows of a view's samples.
fn rows(view: &View) -> u64 {
    view.dims[..3].iter().map(|&dim| u64::from(dim)).product()
}

/// Whether a search's grid is the one that a product is rounded to.
fn is_of(scan: &Scan, logged: &LoggedProduct) -> bool {
    let rule = logged.rule;
    let magnitudes = (rule.floor != 0).then_some([logged.magnitudes_a, logged.magnitudes_b]);
    (&scan.a, &scan.b, scan.magnitudes) == (&logged.a, &logged.b, magnitudes)
        && scan.bits == rule.bits
        && [scan.floor_offset, scan.floor_min] == [rule.floor_offset(logged.a.dims[3]), rule.floor_min()]
}

impl<D: Device> Accelerated<D> {
    /// Starts a search in the output of node `index`, if the device has one; everything that the node reads is still there. What
    /// `rounding` gives is computed with it where that can be.
    pub(super) fn start_search(
        &mut self,
        graph: &Graph,
        index: usize,
        scan: Scan,
        rounding: Option<&Rounding>,
        values: &mut [Option<Tensor>],
        searches: &mut Searches<D>,
    ) -> Result<bool, EngineError> {
        let node = &graph.nodes[index];
        let Some(kernels) = self.device.scan_kernels().filter(|_| self.scanning) else { return Ok(false) };
        let kernels = kernels?;
        let sides = [rows(&scan.a), rows(&scan.b)];
        let (m, n) = (u64::from(scan.a.dims[2]), u64::from(scan.b.dims[2]));
        let elements = sides[0] * n;
        let parts = graph.tensor(node.output).len() as u64 / elements.max(1);
        if elements == 0 {
            return Ok(false);
        }
        let places = (elements / SHARE).max(PLACES_MIN);
        let take = |bytes| self.pool.take(bytes, false, |bytes| self.device.allocate(bytes));
        let (found, norms) = (take(4 * WORDS * places)?, take(4 * (COUNT + sides[0] + sides[1]))?);

        // Every size fits a word: tensors that shaders see have fewer than 2^32 elements.
        let word = |size: u64| size as u32;
        let norms_at = [COUNT, COUNT + sides[0]];
        let of_side = |view: &View, side: usize| {
            let [_, b1, rows, k] = view.dims;
            let mut words = vec![b1, rows, k, view.offset];
            words.extend(view.strides);
            words.extend([word(sides[side]), word(norms_at[side]), u32::from(side == 0)]);
            words
        };
        let floored = scan.magnitudes.is_some();
        let of_product = vec![
            word(elements),
            word(m),
            word(n),
            u32::from(scan.bits),
            u32::from(floored),
            scan.floor_offset as u32,
            scan.floor_min as u32,
            scan.norms.to_bits(),
            scan.relative.to_bits(),
            u32::from(parts == 2),
            word(norms_at[0]),
            word(norms_at[1]),
            word(places),
        ];
        let words = [of_side(&scan.a, 0), of_side(&scan.b, 1), of_product];
        let data: Vec<u8> = (words.iter())
            .flat_map(|words| {
                let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                bytes.resize(UNIFORM as usize, 0);
                bytes
            })
            .collect();
        // The same products come back with every micro-batch.
        self.keep_uniforms(&data)?;
        let uniforms = &self.kept[&data];

        let mut read = vec![node.output, scan.a.tensor, scan.b.tensor];
        read.extend(scan.magnitudes.into_iter().flatten());
        let held: Vec<(TensorId, Tensor)> = read
            .into_iter()
            .map(|id| (id, values[id.0 as usize].clone().expect("a node's inputs are there after it")))
            .collect();
        if held.iter().any(|(_, tensor)| tensor.storage::<Storage<D::Memory>>().pieces.len() > 1) {
            return Ok(false); // the search's kernels see whole tensors
        }
        let buffer = |i: usize| {
            let storage = held[i].1.storage::<Storage<D::Memory>>();
            (storage.whole(), layout::bytes(&storage.ty, self.variant))
        };
        let rounded = rounding.filter(|rounding| is_of(&scan, &graph.logged[rounding.number]));
        let rounded = rounded.map(|rounding| graph.nodes[rounding.node].output);
        let rounded = rounded.map(|id| Ok::<_, EngineError>((id, self.blank_of(graph, id)?))).transpose()?;
        let rounded = rounded.filter(|(_, storage)| storage.pieces.len() == 1);
        let to_sides = (norms.memory(), 4 * (COUNT + sides[0] + sides[1]));
        let of_results = if rounded.is_some() { &kernels.round } else { &kernels.near };
        let dispatch = |i: usize, items: u64, buffers| {
            let (pipeline, each) = if i == 2 { of_results } else { &kernels.norms };
            let groups = [word(items.div_ceil(u64::from(*each))), 1, 1];
            Dispatch {
                pipeline,
                uniform: (uniforms, UNIFORM * i as u64, 4 * words[i].len() as u64),
                buffers,
                groups,
            }
        };
        // Without a floor nobody reads magnitudes.
        let [magnitudes_a, magnitudes_b] = if floored { [3, 4] } else { [0, 0] };
        let to_found = (found.memory(), 4 * WORDS * places);
        let mut near = vec![buffer(0), buffer(magnitudes_a), buffer(magnitudes_b), to_sides, to_found];
        near.extend(rounded.iter().map(|(_, storage)| (storage.whole(), 4 * elements)));
        let dispatches = [
            dispatch(0, sides[0], vec![buffer(1), to_sides]),
            dispatch(1, sides[1], vec![buffer(2), to_sides]),
            dispatch(2, elements, near),
        ];
        self.device.submit(&dispatches)?;
        drop(dispatches);
        let size = |(_, tensor): &(TensorId, Tensor)| {
            layout::bytes(&tensor.storage::<Storage<D::Memory>>().ty, self.variant)
        };
        let bytes = held.iter().map(size).sum::<u64>();
        let magnitudes = if floored { &held[3..] } else { &[] };
        let magnitudes = magnitudes
            .iter()
            .zip(sides)
            .map(|((_, tensor), rows)| (tensor.storage::<Storage<D::Memory>>().whole(), 4 * rows));
        let from: Vec<_> = std::iter::once(to_sides).chain(magnitudes).collect();
        let copying = self.device.begin_read(&from)?;
        drop(from);
        searches.held += bytes;
        if let Some((id, storage)) = rounded {
            values[id.0 as usize] = Some(Tensor::new(storage));
            self.rounded += 1;
        }
        let started = Started { index, scan, copying, held, bytes, rows: sides, places, sides: norms, found };
        searches.started.push_back(started);
        Ok(true)
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
            let mut inputs = Shown { gpu: self, values: &values };
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
    fn found(&self, search: &mut Started<D>) -> Result<Option<Found>, EngineError> {
        let [rows_a, rows_b] = search.rows;
        let floored = search.scan.magnitudes.is_some();
        let mut words: Vec<u32> = Vec::new();
        let mut take = |bytes: &[u8]| {
            words.extend(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        };
        match search.copying.take() {
            Some(copying) => self.device.end_read(copying, &mut take)?,
            None => {
                self.device.read(search.sides.memory(), 4 * (COUNT + rows_a + rows_b), &mut take)?;
                let magnitudes = if floored { &search.held[3..] } else { &[] };
                for ((_, tensor), rows) in magnitudes.iter().zip(search.rows) {
                    let memory = tensor.storage::<Storage<D::Memory>>().whole();
                    self.device.read(memory, 4 * rows, &mut take)?;
                }
            }
        }
        let count = u64::from(words[0]);
        if count > search.places {
            return Ok(None);
        }
        let mut sides = words.split_off(COUNT as usize);
        let mut rest = sides.split_off((rows_a + rows_b) as usize);
        let norms_b = sides.split_off(rows_a as usize);
        let norms = [sides, norms_b].map(|norms| norms.into_iter().map(f32::from_bits).collect());
        let magnitudes = floored.then(|| {
            let of_columns = rest.split_off(rows_a as usize);
            [rest, of_columns]
        });
        let mut candidates = Vec::with_capacity(count as usize);
        if count != 0 {
            // What was copied says that the search has ended.
            self.device.read_beside(search.found.memory(), 4 * WORDS * count, &mut |bytes| {
                let word = |c: &[u8], i: usize| u32::from_le_bytes([c[i], c[i + 1], c[i + 2], c[i + 3]]);
                let found = bytes.chunks_exact(4 * WORDS as usize);
                candidates.extend(found.map(|c| Candidate {
                    place: word(c, 0),
                    high: word(c, 4),
                    rest: word(c, 8),
                }));
            })?;
        }
        Ok(Some(Found { norms, magnitudes, candidates }))
    }
}
