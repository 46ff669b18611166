//! The order of a row fusion's computations in its kernel, and the memory of values that a later pass needs.
//!
//! A pass goes over the row's elements, 64 at a time, and computes all maps whose operands are available. Sums and maxima over
//! its values end the pass. Values that each row has once are computed between passes. Values that later passes take wait in
//! stretches of workgroup memory.

use std::collections::HashMap;

use super::access::{Access, RowAccess, access, row_access};
use super::fusion::{Role, RowFusion};
use crate::device::kernel::{GROUP, Limits};
use tiebreak_contract::program::expr::{Body, Instr};
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId, View};

/// The operand of a member of a row fusion.
#[derive(Clone, Copy)]
pub(crate) enum RowOperand {
    /// The value that another member computes for the same element or row.
    Member(usize),
    /// The row's own element of a tensor from outside of the fusion: a load, by number.
    Load(usize),
    /// Another element of such a tensor; `input` is the number of the map's view.
    Outside { input: usize, access: RowAccess },
}

/// The row's elements of a tensor.
pub(crate) struct Load {
    pub tensor: TensorId,
    pub offset: u32,
    /// The first and the last pass that take it.
    pub passes: (usize, usize),
}

/// The passes that compute members, and the memory of values between passes.
pub(crate) struct RowLayout {
    /// The operands of each member, in the order of its views.
    pub operands: Vec<Vec<RowOperand>>,
    /// The pass that computes each member. For a value that a row has once, the pass before which it is computed; for a sum or a
    /// maximum, the pass that it ends.
    pub pass: Vec<usize>,
    pub loads: Vec<Load>,
    /// Stretches of workgroup memory: for members that later passes take, for loads that later passes take, and for sums and
    /// maxima.
    pub homes: Vec<Option<u32>>,
    pub load_homes: Vec<Option<u32>>,
    pub scratch: Vec<Option<u32>>,
    pub stretches: u32,
}

/// Words of a stretch, as `row_place` in shaders/shared/row.wgsl lays out a row.
pub(crate) fn stretch_words(len: u32) -> u32 {
    len + (len - 1) / 32
}

/// Stretches that are taken and returned, the lowest first.
#[derive(Default)]
struct Stretches {
    taken: Vec<bool>,
}

impl Stretches {
    fn take(&mut self) -> u32 {
        let free = self.taken.iter().position(|taken| !taken).unwrap_or_else(|| {
            self.taken.push(false);
            self.taken.len() - 1
        });
        self.taken[free] = true;
        free as u32
    }

    fn give(&mut self, stretch: Option<u32>) {
        if let Some(stretch) = stretch {
            self.taken[stretch as usize] = false;
        }
    }
}

impl RowLayout {
    /// The layout of a fusion, if a device with these limits can run it. Loads that several passes take are kept in memory; if
    /// there is no room, they are repeated.
    pub(crate) fn of(graph: &Graph, fusion: &RowFusion, limits: &Limits) -> Option<RowLayout> {
        if fusion.reads.len() + fusion.writes.len() > limits.buffers as usize
            || rounds(graph, fusion) > limits.rounds
        {
            return None;
        }
        let fits = |layout: &RowLayout| layout.stretches * stretch_words(fusion.len) * 4 <= limits.bytes;
        [true, false].map(|keep| RowLayout::keeping(graph, fusion, keep)).into_iter().find(fits)
    }

    fn keeping(graph: &Graph, fusion: &RowFusion, keep: bool) -> RowLayout {
        let mut layout = RowLayout {
            operands: Vec::new(),
            pass: Vec::new(),
            loads: Vec::new(),
            homes: vec![None; fusion.members.len()],
            load_homes: Vec::new(),
            scratch: vec![None; fusion.members.len()],
            stretches: 0,
        };
        layout.order(graph, fusion);
        layout.give_stretches(fusion, keep);
        layout
    }

    /// Finds every member's operands, and the pass that computes it: the first pass that has all of them.
    fn order(&mut self, graph: &Graph, fusion: &RowFusion) {
        let mut members: HashMap<TensorId, usize> = HashMap::new();
        for (number, member) in fusion.members.iter().enumerate() {
            let node = &graph.nodes[member.node];
            let mut own = |tensor: TensorId, offset: u32| match members.get(&tensor) {
                Some(&member) => RowOperand::Member(member),
                None => RowOperand::Load(self.load(tensor, offset)),
            };
            let operands: Vec<RowOperand> = match &node.primitive {
                Primitive::Map { inputs, .. } => (inputs.iter().enumerate())
                    .map(|(input, view)| match view_access(view, member.role, fusion.len) {
                        RowAccess::Element => own(view.tensor, view.offset),
                        access => match members.get(&view.tensor) {
                            Some(&member) => RowOperand::Member(member),
                            None => RowOperand::Outside { input, access },
                        },
                    })
                    .collect(),
                _ => vec![own(node.primitive.inputs()[0], 0)],
            };
            let ready = |operand: &RowOperand| match *operand {
                RowOperand::Member(of) => self.pass[of] + usize::from(fusion.members[of].role.reduces()),
                _ => 0,
            };
            let pass = operands.iter().map(ready).max().unwrap_or(0);
            for operand in &operands {
                if let RowOperand::Load(load) = operand {
                    let (first, last) = &mut self.loads[*load].passes;
                    (*first, *last) = ((*first).min(pass), (*last).max(pass));
                }
            }
            members.insert(node.output, number);
            self.operands.push(operands);
            self.pass.push(pass);
        }
    }

    /// The number of a load.
    fn load(&mut self, tensor: TensorId, offset: u32) -> usize {
        let same = |load: &Load| (load.tensor, load.offset) == (tensor, offset);
        self.loads.iter().position(same).unwrap_or_else(|| {
            self.loads.push(Load { tensor, offset, passes: (usize::MAX, 0) });
            self.loads.len() - 1
        })
    }

    /// The number of passes over the row.
    pub(crate) fn passes(&self) -> usize {
        self.pass.iter().max().map_or(0, |last| last + 1)
    }

    /// Gives stretches of memory to values that later passes take. A value that a pass takes for the last time leaves its stretch
    /// to a value that the same pass computes: each invocation reads its element before it writes there.
    fn give_stretches(&mut self, fusion: &RowFusion, keep: bool) {
        let roles: Vec<Role> = fusion.members.iter().map(|member| member.role).collect();
        let mut last = self.pass.clone();
        for (number, operands) in self.operands.iter().enumerate() {
            for operand in operands {
                if let RowOperand::Member(of) = operand {
                    last[*of] = last[*of].max(self.pass[number]);
                }
            }
        }
        self.load_homes = vec![None; self.loads.len()];
        let mut stretches = Stretches::default();
        for pass in 0..self.passes() {
            for (number, role) in roles.iter().enumerate() {
                if *role == Role::Wide && last[number] == pass {
                    stretches.give(self.homes[number]);
                }
            }
            for (load, home) in self.loads.iter().zip(&self.load_homes) {
                if load.passes.1 == pass {
                    stretches.give(*home);
                }
            }
            for (number, role) in roles.iter().enumerate() {
                if *role == Role::Wide && self.pass[number] == pass && last[number] > pass {
                    self.homes[number] = Some(stretches.take());
                }
            }
            for (load, home) in self.loads.iter().zip(&mut self.load_homes) {
                if keep && load.passes.0 == pass && load.passes.1 > pass {
                    *home = Some(stretches.take());
                }
            }
            for (number, role) in roles.iter().enumerate() {
                if role.reduces() && self.pass[number] == pass {
                    self.scratch[number] = Some(stretches.take());
                }
            }
            for (number, role) in roles.iter().enumerate() {
                if role.reduces() && self.pass[number] == pass {
                    stretches.give(self.scratch[number]);
                }
            }
        }
        self.stretches = stretches.taken.len() as u32;
    }
}

/// The access of a map's view: for an element of a row, or for a row if the map has one output for each row.
fn view_access(view: &View, role: Role, len: u32) -> RowAccess {
    if role == Role::Wide {
        return row_access(view, len);
    }
    match access(view) {
        Access::Contiguous => RowAccess::PerRow,
        Access::Uniform => RowAccess::Uniform,
        Access::Strided => RowAccess::Strided,
    }
}

/// The most rounds of loops that an invocation takes for a row, including those of scalar operations.
fn rounds(graph: &Graph, fusion: &RowFusion) -> u32 {
    let each = fusion.len.div_ceil(GROUP);
    let of_body = |body: &Body| -> u32 {
        let of = |instr: &Instr| match instr {
            Instr::FDiv(..) | Instr::FSqrt(_) => 26,
            Instr::FExp(_) | Instr::Philox { .. } => 10,
            Instr::FLog(_) | Instr::FTanh(_) | Instr::FErf(_) => 80,
            _ => 0,
        };
        body.code.iter().map(of).sum()
    };
    let of_member = |role: Role, primitive: &Primitive| match (role, primitive) {
        (Role::Wide, Primitive::Map { body, .. }) => (of_body(body) + 1) * each,
        (Role::Narrow, Primitive::Map { body, .. }) => of_body(body),
        // A level of the tree has one round for itself, and half as many additions as the level before.
        (Role::Sum, _) => 2 * (each + fusion.len.ilog2() + 1),
        _ => each + GROUP,
    };
    fusion.members.iter().map(|member| of_member(member.role, &graph.nodes[member.node].primitive)).sum()
}
