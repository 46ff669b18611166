//! The matrix product of the contract, digitised; products of logged classes are rounded to their grid.

use super::operand::ProductOperand;
use crate::arith::DType;
use crate::arith::digits::ProductPart;
use crate::program::builder::Builder;
use crate::program::graph::{Primitive, TensorId, block_count};
use crate::program::logged::logged_product;
use crate::program::products::ProductClass;

impl Builder {
    /// The digitised matrix product of `a` [batch0, batch1, M, K] and `b` [batch0, batch1, N, K]. The result, of
    /// batch0*batch1*M*N elements in that order, gets `shape`. In a logged class patches are binary32, with a scale group for
    /// each row.
    pub fn product(
        &mut self,
        class: ProductClass,
        a: impl Into<ProductOperand>,
        b: impl Into<ProductOperand>,
        shape: &[u32],
    ) -> TensorId {
        let (a, b) = (a.into(), b.into());
        let [[a0, a1, m, k], [b0, b1, n, k_of_b]] = [&a, &b].map(|side| self.operand_dims(side));
        assert_eq!((a0, a1, k), (b0, b1, k_of_b), "product shapes");
        if let Some(rule) = self.products().logged(class) {
            let sides = [self.native_operand(a), self.native_operand(b)];
            return logged_product(self, class, rule, sides, shape);
        }
        let digits = self.products().get(class);
        let batch = a0 * a1;
        assert_eq!(shape.iter().product::<u32>(), batch * m * n, "product output shape");
        let block = if digits.block >= k { 0 } else { digits.block };
        let blocks = block_count(k, block);
        let (qa, absmaxes_a) = self.digitised(a, digits.digits_a, block);
        let (qb, absmaxes_b) = self.digitised(b, digits.digits_b, block);
        let product =
            Primitive::Product { a: qa, absmaxes_a, b: qb, absmaxes_b, block, part: ProductPart::Rounded };
        if blocks == 1 {
            return self.node(product, DType::F32, shape);
        }
        let input = self.node(product, DType::F32, &[blocks, batch, m, n]);
        self.tree_sum(input, [1, blocks, batch * m * n], shape)
    }
}
