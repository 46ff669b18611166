//! A kernel's effects on memory: the elements that it reads and writes, the order, and the written values.

use std::collections::HashMap;

use naga::{GlobalVariable, Handle};

use crate::term::Term;

/// A read or a write of one element.
pub struct Access {
    /// The variable.
    pub global: Handle<GlobalVariable>,
    /// True if a run reaches this access.
    pub live: Term,
    /// The index at each level of the variable's arrays.
    pub place: Vec<Term>,
    /// The written value; `None` for a read.
    pub value: Option<Term>,
    /// The number of barriers before it, as [`Memory::barriers`] counts them.
    pub barriers: u32,
}

/// Memory as one invocation of a kernel uses it.
pub struct Memory {
    /// Words of the uniform that have a value; any other word may be anything.
    pub fixed: HashMap<String, u32>,
    /// All accesses, in the text's order.
    pub accesses: Vec<Access>,
    /// Declarations of the values that the kernel finds in memory: names, and the text.
    pub declared: Vec<(String, String)>,
    /// The number of barriers so far; a loop that is not unrolled counts as one, at its beginning and at its end.
    pub barriers: u32,
}

impl Memory {
    /// Memory without accesses.
    pub fn new(fixed: HashMap<String, u32>) -> Memory {
        Memory { fixed, accesses: Vec::new(), declared: Vec::new(), barriers: 0 }
    }

    /// Declares a name, once; returns true if it is new.
    pub fn declare(&mut self, name: &str, sorts: String) -> bool {
        let new = !self.declared.iter().any(|(known, _)| known == name);
        if new {
            self.declared.push((name.into(), format!("(declare-fun {name} {sorts})")));
        }
        new
    }
}
