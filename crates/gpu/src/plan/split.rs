//! The windows of each primitive: windows of its output, and the parts of its inputs that each window reads.

use super::windows::{
    Binding, Cut, IndexRange, TooLarge, Volume, Window, distinct, extents, merge, part_of, volume, window,
    words_of_group,
};
use crate::device::layout::words_of_k;
use crate::rows::access::Index;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::expr::Instr;
use tiebreak_contract::program::graph::{
    Graph, Node, Primitive, TensorId, TensorType, View, block_count, row_major,
};
use tiebreak_contract::program::im2col::{ConvGeometry, DigitPatches};
use tiebreak_shaders::product::Variant;

/// The windows of a node where a shader can access `limit` bytes, a multiple of 256; none if the node need not be split.
///
/// # Errors
/// If the node cannot be split into parts that are small enough.
pub(crate) fn windows_of(
    graph: &Graph,
    node: &Node,
    variant: Variant,
    limit: u64,
) -> Result<Vec<Window>, TooLarge> {
    if matches!(node.primitive, Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. }) {
        return Ok(Vec::new()); // groupings run on the host
    }
    let mut tensors = node.primitive.inputs();
    tensors.push(node.output);
    let cuts: Vec<Cut> = tensors.iter().map(|id| Cut::of(graph.tensor(*id), variant, limit)).collect();
    if cuts.iter().all(Cut::is_whole) || graph.tensor(node.output).is_empty() {
        return Ok(Vec::new());
    }
    Split { graph, node, variant, limit: limit / 4, tensors, cuts }.windows()
}

/// A node that is being split. Tensors are numbered in the order in which the node reads them; the output is the last.
struct Split<'a> {
    graph: &'a Graph,
    node: &'a Node,
    variant: Variant,
    /// Words that a shader can access.
    limit: u64,
    tensors: Vec<TensorId>,
    cuts: Vec<Cut>,
}

/// A type of four-byte elements. For tensors that are read through a view, the shape does not matter.
fn elements(shape: &[u32]) -> TensorType {
    TensorType { dtype: DType::F32, shape: shape.to_vec() }
}

impl Split<'_> {
    fn windows(&self) -> Result<Vec<Window>, TooLarge> {
        match &self.node.primitive {
            Primitive::Map { .. } => self.map(),
            Primitive::Gather { .. } => self.gather(),
            Primitive::Im2col { geometry, .. } => self.im2col(*geometry),
            Primitive::DigitPatches { patches, .. } => self.digit_patches(*patches),
            Primitive::RowMax { block, .. } => self.reduction(self.columns(0), 1, *block),
            Primitive::TreeSum { len, inner, block, .. } => self.reduction(*len, *inner, *block),
            Primitive::SegmentSum { .. } => self.segment_sum(),
            Primitive::Absmax { input, block } => self.absmax(input, *block),
            Primitive::Quantise { input, block, .. } => self.quantise(input, *block),
            Primitive::Product { .. } => self.product(),
            Primitive::Native { a, b } => self.native(a, b),
            Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. } => {
                unreachable!("groupings run on the host")
            }
        }
    }

    fn ty(&self, number: usize) -> &TensorType {
        self.graph.tensor(self.tensors[number])
    }

    fn columns(&self, number: usize) -> u32 {
        *self.ty(number).shape.last().expect("tensors have rank 1 or more")
    }

    fn output(&self) -> usize {
        self.tensors.len() - 1
    }

    /// The volume of a dense window that a part of the node needs: at most a piece, so that it need not be copied.
    fn dense(&self, number: usize, words: u64) -> Volume {
        let cut = self.cuts[number];
        (words, if cut.is_whole() { self.limit } else { cut.piece })
    }

    /// The volume of a view. A whole tensor is bound without a copy, for any view of it.
    fn viewed(&self, number: usize, view: &View, len: Index) -> Volume {
        let cut = self.cuts[number];
        let part = View { dims: len, ..view.clone() };
        (volume(&distinct(&part)), if cut.is_whole() { u64::MAX } else { cut.piece })
    }

    /// The parts of the index space `dims`, row-major, for which the tensors' volumes fit; `volumes` takes the extents of a part.
    fn parts(
        &self,
        dims: Index,
        volumes: &dyn Fn(Index) -> Vec<Volume>,
    ) -> Result<Vec<IndexRange>, TooLarge> {
        let most = extents(dims, volumes).map_err(|number| {
            let bytes = volumes([1; 4])[number].0 * 4;
            TooLarge { tensor: self.tensors[number], bytes }
        })?;
        let mut parts = vec![IndexRange { first: [0; 4], len: dims }];
        for d in 0..4 {
            let along = |part: IndexRange| {
                (0..dims[d]).step_by(most[d] as usize).map(move |first| {
                    let mut part = part;
                    (part.first[d], part.len[d]) = (first, most[d].min(dims[d] - first));
                    part
                })
            };
            parts = parts.into_iter().flat_map(along).collect();
        }
        Ok(parts)
    }

    /// The binding of a window that has to be dense: the beginning of a piece, or memory of its own.
    fn bind(&self, number: usize, window: View) -> Binding {
        let cut = self.cuts[number];
        let (start, end) = (u64::from(window.offset), window.reach() as u64);
        let inside = end <= (start + cut.piece).min(cut.words);
        if window.is_contiguous() && start.is_multiple_of(cut.piece) && inside {
            Binding::Piece((start / cut.piece) as usize)
        } else {
            Binding::Copied(window)
        }
    }

    /// The binding of a window that may be strided, and the view there: a piece that contains all of it, or memory of its own.
    fn bind_view(&self, number: usize, view: View) -> (Binding, View) {
        let piece = self.cuts[number].piece;
        let (first, end) = (u64::from(view.offset), view.reach() as u64);
        let tensor = TensorId(number as u32);
        if end <= (first / piece + 1) * piece {
            let offset = (first % piece) as u32;
            return (Binding::Piece((first / piece) as usize), View { tensor, offset, ..view });
        }
        let dims = distinct(&view);
        let dense = row_major(dims);
        let strides = std::array::from_fn(|d| if view.strides[d] == 0 { 0 } else { dense[d] });
        let seen = View { tensor, offset: 0, dims: view.dims, strides };
        (Binding::Copied(View { dims, ..view }), seen)
    }

    /// The words of rows of a quantised tensor [outer * inner, rows, K], in all digits' planes.
    fn quantised(&self, number: usize, inner: u32, first: [u32; 3], len: [u32; 3]) -> View {
        let ty = self.ty(number);
        let DType::Q(digits) = ty.dtype else { unreachable!("products take quantised operands") };
        let planes = if self.variant == Variant::Words { 1 } else { u32::from(digits) };
        let words = words_of_k(ty.shape[2]) * words_of_group(self.variant);
        let sample = ty.shape[1] * words;
        let strides = [ty.shape[0] * sample, inner * sample, sample, 1];
        let first = [0, first[0], first[1], first[2] * words];
        window(strides, first, [planes, len[0], len[1], len[2] * words])
    }

    /// Words of one row of a quantised tensor, in all planes.
    fn row_words(&self, number: usize) -> u64 {
        volume(&self.quantised(number, 1, [0; 3], [1; 3]).dims)
    }

    /// A part of the node, with the types of its inputs and output where these matter.
    fn part(&self, primitive: Primitive, types: Vec<TensorType>, bindings: Vec<Binding>) -> Window {
        let output = TensorId(types.len() as u32 - 1);
        let node = Node { operator: self.node.operator.clone(), primitive, output };
        let graph = Graph { tensors: types, nodes: vec![node], ..Graph::default() };
        Window { graph, origin: [0; 4], bindings }
    }

    fn map(&self) -> Result<Vec<Window>, TooLarge> {
        let Primitive::Map { body, dims, inputs } = &self.node.primitive else { unreachable!() };
        let (mut dims, mut views, output) = (*dims, inputs.clone(), self.output());
        if !body.code.iter().any(|instr| matches!(instr, Instr::Index(_))) {
            merge(&mut dims, &mut views);
        }
        // No view has more distinct elements in a part than the part has elements.
        let parts = self.parts(dims, &|len| {
            let inputs = (0..output).map(|k| self.viewed(k, &views[k], len));
            inputs.chain([self.dense(output, volume(&len))]).collect()
        })?;
        let strides = row_major(dims);
        let windows = parts.into_iter().map(|IndexRange { first, len }| {
            let inputs = views.iter().enumerate();
            let (mut bindings, inputs): (Vec<Binding>, Vec<View>) =
                inputs.map(|(k, view)| self.bind_view(k, part_of(view, first, len))).unzip();
            bindings.push(self.bind(output, window(strides, first, len)));
            let mut types = vec![elements(&[1]); output];
            types.push(elements(&len));
            let primitive = Primitive::Map { body: body.clone(), dims: len, inputs };
            Window { origin: first, ..self.part(primitive, types, bindings) }
        });
        Ok(windows.collect())
    }

    /// Parts of the output [rows, columns]. A table that is shared by all rows is cut along its columns.
    fn gather(&self) -> Result<Vec<Window>, TooLarge> {
        let Primitive::Gather { bound, stride_index, stride_row, stride_column, .. } = self.node.primitive
        else {
            unreachable!()
        };
        let all = self.columns(2);
        let rows = self.ty(2).len() as u32 / all;
        let strides = [0, stride_row, stride_index, stride_column];
        let of_table = |[_, row, _, column]: Index, [_, rows, _, columns]: Index| {
            let table = window(strides, [0, row, 0, column], [1, rows, bound, columns]);
            View { dims: distinct(&table), ..table }
        };
        let parts = self.parts([1, rows, 1, all], &|len| {
            let table = volume(&of_table([0; 4], len).dims);
            let cells = volume(&len);
            vec![self.dense(0, table), self.dense(1, u64::from(len[1])), self.dense(2, cells)]
        })?;
        let windows = parts.into_iter().map(|IndexRange { first, len }| {
            let ([_, row, _, column], [_, count, _, columns]) = (first, len);
            let seen = of_table(first, len);
            let dense = row_major(seen.dims);
            let stride = |d: usize| if strides[d] == 0 { 0 } else { dense[d] };
            let primitive = Primitive::Gather {
                table: TensorId(0),
                indices: TensorId(1),
                bound,
                stride_index: stride(2),
                stride_row: stride(1),
                stride_column: stride(3),
            };
            let bindings = vec![
                self.bind(0, seen),
                self.bind(1, window([0, 0, 0, 1], [0, 0, 0, row], [1, 1, 1, count])),
                self.bind(2, window([0, 0, all, 1], [0, 0, row, column], [1, 1, count, columns])),
            ];
            let types = vec![elements(&[1]), elements(&[count]), elements(&[count, columns])];
            self.part(primitive, types, bindings)
        });
        Ok(windows.collect())
    }

    /// Parts of the output [samples, rows of patches, elements of a row of patches]; a part reads whole images.
    fn im2col(&self, geometry: ConvGeometry) -> Result<Vec<Window>, TooLarge> {
        let shape = &self.ty(0).shape;
        let [samples, height, width, channels] = [0, 1, 2, 3].map(|d| shape[d]);
        let ([down, across], image) = (geometry.size, height * width * channels);
        let [_, line] = ConvGeometry { size: [1, 1], ..geometry }.shape(1, channels * across);
        let parts = self.parts([1, samples, down, 1], &|[_, n, y, _]| {
            vec![self.dense(0, volume(&[n, image])), self.dense(1, volume(&[n, y, line]))]
        })?;
        let windows =
            parts.into_iter().map(|IndexRange { first: [_, n, y, _], len: [_, samples, rows, _] }| {
                let from = window([0, 0, image, 1], [0, 0, n, 0], [1, 1, samples, image]);
                let to = window([0, down * line, line, 1], [0, n, y, 0], [1, samples, rows, line]);
                let types =
                    vec![elements(&[samples, height, width, channels]), elements(&[samples, rows, line])];
                let geometry = ConvGeometry { size: [rows, across], ..geometry };
                let bindings = vec![self.bind(0, from), self.bind(1, to)];
                let part = self.part(Primitive::Im2col { input: TensorId(0), geometry }, types, bindings);
                Window { origin: [0, y, 0, 0], ..part }
            });
        Ok(windows.collect())
    }

    /// Parts of the output's rows: [samples, rows of patches], whose parts read whole images, or [taps, channels], whose parts
    /// read whole channels.
    fn digit_patches(&self, patches: DigitPatches) -> Result<Vec<Window>, TooLarge> {
        let DigitPatches { geometry, by_channel, .. } = patches;
        let ([_, rows, k], [_, rows_made, k_made]) = (&self.ty(0).shape[..], &self.ty(1).shape[..]) else {
            unreachable!("integers are [1, rows, K]")
        };
        let [samples, channels] = patches.images(*rows, *k).expect("rows are whole images");
        let ([down, across], [taps_down, taps_across]) = (geometry.size, geometry.kernel);
        let [outer, inner, unit] =
            if by_channel { [taps_down * taps_across, channels, 1] } else { [samples, down, across] };
        let (of_input, of_output) = (self.row_words(0), self.row_words(1));
        let parts = self.parts([1, outer, inner, 1], &|[_, o, i, _]| {
            let read = u64::from(if by_channel { i } else { o });
            vec![self.dense(0, read * of_input), self.dense(1, volume(&[o, i, unit]) * of_output)]
        })?;
        let dtype = self.ty(0).dtype;
        let words = words_of_k(*k_made) * words_of_group(self.variant);
        let planes = (of_output / u64::from(words)) as u32;
        let windows =
            parts.into_iter().map(|IndexRange { first: [_, o, i, _], len: [_, outer, count, _] }| {
                let (read, images) = if by_channel { (i, count) } else { (o, outer) };
                let from = self.quantised(0, 1, [0, 0, read], [1, 1, images]);
                let strides = [rows_made * words, inner * unit * words, 0, 1];
                let line = unit * words;
                let to = window(strides, [0, o, 0, i * line], [planes, outer, 1, count * line]);
                let shapes = [vec![1, images, *k], vec![1, outer * count * unit, *k_made]];
                let types = shapes.map(|shape| TensorType { dtype, shape }).to_vec();
                let size = if by_channel { geometry.size } else { [count, across] };
                let patches = DigitPatches { geometry: ConvGeometry { size, ..geometry }, ..patches };
                let primitive = Primitive::DigitPatches { input: TensorId(0), patches };
                let origin = if by_channel { [0, 0, o, 0] } else { [0, i, 0, 0] };
                Window { origin, ..self.part(primitive, types, vec![self.bind(0, from), self.bind(1, to)]) }
            });
        Ok(windows.collect())
    }

    /// Parts of a reduction: [outer, len, inner] -> [outer, blocks, inner].
    fn reduction(&self, len: u32, inner: u32, block: u32) -> Result<Vec<Window>, TooLarge> {
        let (step, blocks) = (if block == 0 { len } else { block }, block_count(len, block));
        let outer = self.ty(1).len() as u32 / (blocks * inner);
        let terms = |first: u32, blocks: u32| (len - first * step).min(blocks.saturating_mul(step));
        let parts = self.parts([1, outer, blocks, inner], &|[_, o, b, i]| {
            vec![self.dense(0, volume(&[o, terms(0, b), i])), self.dense(1, volume(&[o, b, i]))]
        })?;
        let windows =
            parts.into_iter().map(|IndexRange { first: [_, o, b, i], len: [_, outer, count, columns] }| {
                let taken = terms(b, count);
                let strides = |len: u32| [0, len * inner, inner, 1];
                let from = window(strides(len), [0, o, b * step, i], [1, outer, taken, columns]);
                let to = window(strides(blocks), [0, o, b, i], [1, outer, count, columns]);
                let bindings = vec![self.bind(0, from), self.bind(1, to)];
                let input = TensorId(0);
                let (primitive, shape) = match self.node.primitive {
                    Primitive::RowMax { .. } => (Primitive::RowMax { input, block }, vec![outer, taken]),
                    _ => {
                        let sum = Primitive::TreeSum { input, outer, len: taken, inner: columns, block };
                        (sum, vec![outer, taken, columns])
                    }
                };
                let types = vec![elements(&shape), elements(&[outer, count, columns])];
                self.part(primitive, types, bindings)
            });
        Ok(windows.collect())
    }

    /// Parts of the output [segments, columns]; a part reads its columns of all rows.
    fn segment_sum(&self) -> Result<Vec<Window>, TooLarge> {
        let (rows, width) = (self.ty(1).len() as u32, self.columns(3));
        let segments = self.ty(3).len() as u32 / width;
        let parts = self.parts([1, 1, segments, width], &|[_, _, s, w]| {
            let words = [volume(&[rows, w]), u64::from(rows), u64::from(s) + 1, volume(&[s, w])];
            words.into_iter().enumerate().map(|(number, words)| self.dense(number, words)).collect()
        })?;
        let windows =
            parts.into_iter().map(|IndexRange { first: [_, _, s, w], len: [_, _, segments, columns] }| {
                let line = |first: u32, len: u32| window([0, 0, 0, 1], [0, 0, 0, first], [1, 1, 1, len]);
                let table =
                    |first: u32, rows: u32| window([0, 0, width, 1], [0, 0, first, w], [1, 1, rows, columns]);
                let bindings = vec![
                    self.bind(0, table(0, rows)),
                    self.bind(1, line(0, rows)),
                    self.bind(2, line(s, segments + 1)),
                    self.bind(3, table(s, segments)),
                ];
                let [input, order, offsets] = [0, 1, 2].map(TensorId);
                let types = [vec![rows, columns], vec![rows], vec![segments + 1], vec![segments, columns]];
                let types = types.iter().map(|shape| elements(shape)).collect();
                self.part(Primitive::SegmentSum { input, order, offsets }, types, bindings)
            });
        Ok(windows.collect())
    }

    /// Parts of the output [outer, inner, rows, blocks].
    fn absmax(&self, view: &View, block: u32) -> Result<Vec<Window>, TooLarge> {
        let [outer, inner, rows, k] = view.dims;
        let (step, blocks) = (if block == 0 { k } else { block }, block_count(k, block));
        let places_of = |first: u32, blocks: u32| (k - first * step).min(blocks.saturating_mul(step));
        let parts = self.parts([outer, inner, rows, blocks], &|len| {
            let [o, i, r, b] = len;
            vec![self.viewed(0, view, [o, i, r, places_of(0, b)]), self.dense(1, volume(&len))]
        })?;
        let strides = row_major([outer, inner, rows, blocks]);
        let windows = parts.into_iter().map(|IndexRange { first, len }| {
            let ([o, i, r, b], [outer, inner, rows, blocks]) = (first, len);
            let part = part_of(view, [o, i, r, b * step], [outer, inner, rows, places_of(b, blocks)]);
            let (binding, input) = self.bind_view(0, part);
            let to = self.bind(1, window(strides, first, len));
            let types = vec![elements(&[1]), elements(&[outer * inner, rows, blocks])];
            self.part(Primitive::Absmax { input, block }, types, vec![binding, to])
        });
        Ok(windows.collect())
    }

    /// Parts of the output [outer, inner, rows], with whole rows.
    fn quantise(&self, view: &View, block: u32) -> Result<Vec<Window>, TooLarge> {
        let Primitive::Quantise { digits, .. } = self.node.primitive else { unreachable!() };
        let [outer, inner, rows, k] = view.dims;
        let blocks = block_count(k, block);
        let row = self.row_words(2);
        let parts = self.parts([outer, inner, rows, 1], &|[o, i, r, _]| {
            let rows = volume(&[o, i, r]);
            let absmaxes = self.dense(1, rows * u64::from(blocks));
            vec![self.viewed(0, view, [o, i, r, k]), absmaxes, self.dense(2, rows * row)]
        })?;
        let strides = row_major([outer, inner, rows, blocks]);
        let windows = parts.into_iter().map(|IndexRange { first, len }| {
            let ([o, i, r, _], [outer, samples, rows, _]) = (first, len);
            let (binding, input) = self.bind_view(0, part_of(view, first, [outer, samples, rows, k]));
            let absmaxes = window(strides, first, [outer, samples, rows, blocks]);
            let to = self.quantised(2, inner, [o, i, r], [outer, samples, rows]);
            let primitive = Primitive::Quantise { input, absmaxes: TensorId(1), digits, block };
            let quantised = TensorType { dtype: self.ty(2).dtype, shape: vec![outer * samples, rows, k] };
            let types = vec![elements(&[1]), elements(&[1]), quantised];
            let bindings = vec![binding, self.bind(1, absmaxes), self.bind(2, to)];
            self.part(primitive, types, bindings)
        });
        Ok(windows.collect())
    }

    /// Parts of the output [batch, M, N], in all blocks.
    fn product(&self) -> Result<Vec<Window>, TooLarge> {
        let Primitive::Product { block, part, .. } = self.node.primitive else { unreachable!() };
        let (shape_a, n) = (&self.ty(0).shape, self.ty(2).shape[1]);
        let (batch, m, k) = (shape_a[0], shape_a[1], shape_a[2]);
        let blocks = block_count(k, block);
        let rows = [self.row_words(0), u64::from(blocks), self.row_words(2), u64::from(blocks)];
        let parts = self.parts([1, batch, m, n], &|[_, s, m, n]| {
            let side = |number: usize| volume(&[s, if number < 2 { m } else { n }]) * rows[number];
            let operands = (0..4).map(|number| self.dense(number, side(number)));
            operands.chain([self.dense(4, volume(&[blocks, s, m, n]))]).collect()
        })?;
        let windows =
            parts.into_iter().map(|IndexRange { first: [_, s, i, j], len: [_, samples, rows, columns] }| {
                let operand = |number: usize, first: u32, rows: u32| {
                    self.bind(number, self.quantised(number, 1, [s, 0, first], [samples, 1, rows]))
                };
                let absmaxes = |number: usize, all: u32, first: u32, rows: u32| {
                    let strides = row_major([1, batch, all, blocks]);
                    self.bind(number, window(strides, [0, s, first, 0], [1, samples, rows, blocks]))
                };
                let strides = row_major([blocks, batch, m, n]);
                let to = window(strides, [0, s, i, j], [blocks, samples, rows, columns]);
                let bindings = vec![
                    operand(0, i, rows),
                    absmaxes(1, m, i, rows),
                    operand(2, j, columns),
                    absmaxes(3, n, j, columns),
                    self.bind(4, to),
                ];
                let [a, absmaxes_a, b, absmaxes_b] = [0, 1, 2, 3].map(TensorId);
                let primitive = Primitive::Product { a, absmaxes_a, b, absmaxes_b, block, part };
                let side = |number: usize, rows: u32| TensorType {
                    dtype: self.ty(number).dtype,
                    shape: vec![samples, rows, k],
                };
                let absmaxes = elements(&[1]);
                let output = elements(&[blocks * samples, rows, columns]);
                let types = vec![side(0, rows), absmaxes.clone(), side(2, columns), absmaxes, output];
                self.part(primitive, types, bindings)
            });
        Ok(windows.collect())
    }

    /// Parts of the output [outer, inner, M, N]. Results in two parts are computed by a library, which has no such limits.
    fn native(&self, a: &View, b: &View) -> Result<Vec<Window>, TooLarge> {
        let ([outer, inner, m, k], n) = (a.dims, b.dims[2]);
        let dims = [outer, inner, m, n];
        if self.ty(2).len() as u64 != volume(&dims) {
            return Err(TooLarge { tensor: self.tensors[2], bytes: self.cuts[2].words * 4 });
        }
        let parts = self.parts(dims, &|len| {
            let [o, i, m, n] = len;
            vec![
                self.viewed(0, a, [o, i, m, k]),
                self.viewed(1, b, [o, i, n, k]),
                self.dense(2, volume(&len)),
            ]
        })?;
        let windows = parts.into_iter().map(|IndexRange { first, len }| {
            let ([o, i, row, column], [outer, inner, rows, columns]) = (first, len);
            let (binding_a, a) = self.bind_view(0, part_of(a, [o, i, row, 0], [outer, inner, rows, k]));
            let (binding_b, b) = self.bind_view(1, part_of(b, [o, i, column, 0], [outer, inner, columns, k]));
            let to = self.bind(2, window(row_major(dims), first, len));
            let types = vec![elements(&[1]), elements(&[1]), elements(&[outer * inner, rows, columns])];
            self.part(Primitive::Native { a, b }, types, vec![binding_a, binding_b, to])
        });
        Ok(windows.collect())
    }
}
