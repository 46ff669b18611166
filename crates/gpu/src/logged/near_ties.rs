//! The search for near ties of native products on the device, so that neither results nor operands leave it. Only norms,
//! candidates and, for products with a floor, absmaxes leave it. If nothing else rounds the results, the search does, since it
//! reads each of them.

use crate::device::kernel::Kernel;
use crate::plan::beside::{Beside, Launch, Part, Reading, Rest};
use tiebreak_contract::program::graph::{Graph, TensorId, View};
use tiebreak_engine::Value;
use tiebreak_record::rounding::search::{NearTieCandidate, NearTieSearch, NearTiesFound};

/// The memory for candidates has room for one in this many results, and for a few more with small products. If more results are
/// near, the host searches all. Thresholds that fit their kernels mark one in a hundred.
const SHARE: u64 = 16;
const PLACES_MIN: u64 = 256;
/// Words of a candidate, and words before the norms: the count.
const WORDS: u64 = 3;
const COUNT: u64 = 4;

/// The search's own memory, by number: the count of candidates with the norms behind it; and the candidates.
const SIDES: usize = 0;
const FOUND: usize = 1;

/// The sizes of a search.
#[derive(Clone, Copy)]
struct Sizes {
    /// Rows of both views.
    rows: [u64; 2],
    /// The number of results, and of the candidates that have room.
    elements: u64,
    places: u64,
    /// The number of parts of a result.
    parts: u64,
}

impl Sizes {
    /// The sizes of a search in a tensor; `None` if there is nothing to search.
    fn of(graph: &Graph, output: TensorId, search: &NearTieSearch) -> Option<Sizes> {
        let rows: [u64; 2] =
            [&search.a, &search.b].map(|view| view.dims[..3].iter().map(|&dim| u64::from(dim)).product());
        let elements = rows[0] * u64::from(search.b.dims[2]);
        let parts = graph.tensor(output).len() as u64 / elements.max(1);
        (elements != 0).then(|| Sizes { rows, elements, places: (elements / SHARE).max(PLACES_MIN), parts })
    }

    /// Bytes of the count and the norms.
    fn side_bytes(&self) -> u64 {
        4 * (COUNT + self.rows[0] + self.rows[1])
    }

    /// The word where the norms of each side begin.
    fn norms_at(&self) -> [u32; 2] {
        [COUNT, COUNT + self.rows[0]].map(|at| at as u32)
    }

    /// The kernel of the norms of one side.
    fn norms(&self, view: &View, side: usize) -> Kernel {
        let [_, b1, rows, k] = view.dims;
        let mut uniform = vec![b1, rows, k, view.offset];
        uniform.extend(view.strides);
        uniform.extend([self.rows[side] as u32, self.norms_at()[side], u32::from(side == 0)]);
        Kernel::RowNorms { uniform, rows: self.rows[side] as u32 }
    }

    /// The kernel of the search.
    fn search(&self, search: &NearTieSearch, rounds: bool) -> Kernel {
        let [norms_a, norms_b] = self.norms_at();
        let uniform = vec![
            self.elements as u32,
            search.a.dims[2],
            search.b.dims[2],
            u32::from(search.bits),
            u32::from(search.absmaxes.is_some()),
            search.floor_offset as u32,
            search.floor_min as u32,
            search.norms.to_bits(),
            search.relative.to_bits(),
            u32::from(self.parts == 2),
            norms_a,
            norms_b,
            self.places as u32,
        ];
        Kernel::NearTies { uniform, elements: self.elements as u32, rounds }
    }
}

/// The search in the output of node `index`; `None` if there is nothing to search. The search may compute the node that rounds
/// the results to their grid. Every size fits a word, since tensors that shaders access have fewer than 2^32 elements.
pub fn beside(
    graph: &Graph,
    index: usize,
    search: &NearTieSearch,
    rounding: Option<usize>,
) -> Option<Beside> {
    let output = graph.nodes[index].output;
    let sizes = Sizes::of(graph, output, search)?;
    let mut reads = vec![output, search.a.tensor, search.b.tensor];
    reads.extend(search.absmaxes.into_iter().flatten());
    let absmaxes = [Part::Read(3), Part::Read(4)];
    let (sides, found) = (Part::Own(SIDES), Part::Own(FOUND));
    let mut near = vec![Part::Read(0)];
    // Without a floor nobody reads absmaxes, so the kernel's bindings get any memory.
    near.extend(if search.absmaxes.is_some() { absmaxes } else { [Part::Read(0); 2] });
    near.extend([sides, found]);
    near.extend(rounding.map(|_| Part::Computed));
    let launches = vec![
        Launch { kernel: sizes.norms(&search.a, 0), parts: vec![Part::Read(1), sides] },
        Launch { kernel: sizes.norms(&search.b, 1), parts: vec![Part::Read(2), sides] },
        Launch { kernel: sizes.search(search, rounding.is_some()), parts: near },
    ];
    let mut first = vec![sides];
    first.extend(search.absmaxes.into_iter().flat_map(|_| absmaxes));
    Some(Beside {
        reads,
        memory: vec![sizes.side_bytes(), 4 * WORDS * sizes.places],
        computes: rounding,
        launches,
        first,
        reading: Box::new(Found { sizes, floored: search.absmaxes.is_some() }),
    })
}

/// The host's reader of a search's results.
struct Found {
    sizes: Sizes,
    /// True if the absmaxes are needed.
    floored: bool,
}

impl Reading for Found {
    fn rest(&self, first: &[u32]) -> Option<Rest> {
        let count = u64::from(first[0]);
        (count <= self.sizes.places).then_some(Rest { memory: FOUND, bytes: 4 * WORDS * count })
    }

    fn value(&self, mut first: Vec<u32>, rest: Vec<u32>) -> Value {
        let [rows_a, rows_b] = self.sizes.rows.map(|rows| rows as usize);
        let mut norms_a = first.split_off(COUNT as usize);
        let mut norms_b = norms_a.split_off(rows_a);
        let mut absmaxes_a = norms_b.split_off(rows_b);
        let norms = [norms_a, norms_b].map(|norms| norms.into_iter().map(f32::from_bits).collect());
        let absmaxes = self.floored.then(|| {
            let absmaxes_b = absmaxes_a.split_off(rows_a);
            [absmaxes_a, absmaxes_b]
        });
        let found = rest.as_chunks::<{ WORDS as usize }>().0.iter();
        let candidate =
            |&[place, high, rounding_error]: &[u32; 3]| NearTieCandidate { place, high, rounding_error };
        Value::new(NearTiesFound { norms, absmaxes, candidates: found.map(candidate).collect() })
    }
}
