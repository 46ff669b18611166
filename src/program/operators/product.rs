//! The matrix product of the contract, digitised; of a logged class, rounded to its grid.

use crate::arith::DType;
use crate::arith::digits::ProductPart;
use crate::program::builder::Builder;
use crate::program::graph::{Primitive, TensorId, View, block_count};
use crate::program::logged::logged_product;
use crate::program::products::ProductClass;

impl Builder {
    /// The digitised matrix product of `a` [batch0, batch1, M, K] and `b` [batch0, batch1, N, K]; the result, of
    /// batch0*batch1*M*N elements in that order, gets `shape`.
    pub fn product(&mut self, class: ProductClass, a: View, b: View, shape: &[u32]) -> TensorId {
        assert_eq!((a.dims[0], a.dims[1], a.dims[3]), (b.dims[0], b.dims[1], b.dims[3]), "product shapes");
        if let Some(rule) = self.products().logged(class) {
            return logged_product(self, class, rule, [a, b], shape);
        }
        let digits = self.products().get(class);
        let (batch, m, n, k) = (a.dims[0] * a.dims[1], a.dims[2], b.dims[2], a.dims[3]);
        assert_eq!(shape.iter().product::<u32>(), batch * m * n, "product output shape");
        let block = if digits.block >= k { 0 } else { digits.block };
        let blocks = block_count(k, block);
        let (qa, absmaxes_a) = self.quantise(a, digits.digits_a, block);
        let (qb, absmaxes_b) = self.quantise(b, digits.digits_b, block);
        let product =
            Primitive::Product { a: qa, absmaxes_a, b: qb, absmaxes_b, block, part: ProductPart::Rounded };
        if blocks == 1 {
            return self.node(product, DType::F32, shape);
        }
        let input = self.node(product, DType::F32, &[blocks, batch, m, n]);
        self.tree_sum(input, [1, blocks, batch * m * n], shape)
    }
}
