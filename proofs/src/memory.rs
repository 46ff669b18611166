//! What a kernel does to memory: which elements it reads and writes, when, and what it writes.

use std::collections::HashMap;

use naga::{GlobalVariable, Handle};

use crate::term::Term;

/// A read or a write of one element.
pub struct Access {
    /// The variable.
    pub global: Handle<GlobalVariable>,
    /// Whether a run comes here.
    pub live: Term,
    /// The index at each level of the variable's arrays.
    pub place: Vec<Term>,
    /// What is written; nothing if this is a read.
    pub value: Option<Term>,
    /// Barriers before it, as [`Memory::barriers`] counts them.
    pub barriers: u32,
}

/// Memory as one invocation of a kernel uses it.
pub struct Memory {
    /// Words of the uniform that have a value; any other may be anything.
    pub fixed: HashMap<String, u32>,
    /// All accesses, in the text's order.
    pub accesses: Vec<Access>,
    /// Declarations of what the kernel finds in memory: names, and the text.
    pub declared: Vec<(String, String)>,
    /// Barriers so far; a loop that is not unrolled counts as one, where it begins and where it ends.
    pub barriers: u32,
}

impl Memory {
    /// Untouched.
    pub fn new(fixed: HashMap<String, u32>) -> Memory {
        Memory { fixed, accesses: Vec::new(), declared: Vec::new(), barriers: 0 }
    }

    /// Declares a name, once; says whether it is new.
    pub fn declare(&mut self, name: &str, sorts: String) -> bool {
        let new = !self.declared.iter().any(|(known, _)| known == name);
        if new {
            self.declared.push((name.into(), format!("(declare-fun {name} {sorts})")));
        }
        new
    }
}
