//! Reads the subset of Python's pickle format that PyTorch's state dicts and Lightning's checkpoints use.
//!
//! Nothing is ever imported or called: a value that is not a tensor, an integer, a text or a container is opaque. So a file from an
//! untrusted source can be read without running its author's code.
//!
//! A file can use neither more memory than its length justifies nor much of the stack: values are counted, and containers are in
//! one list and refer to each other by number. They may be nested to any depth (a list may contain itself): no recursion follows
//! them.

use std::collections::HashMap;
use std::rc::Rc;

/// Limit for the values in a pickle: a state dict has about 25 per tensor.
const MOST_VALUES: usize = 500_000;
/// Limit for the dimensions of a tensor: more than the weights of any layer have.
const MOST_DIMENSIONS: usize = 16;

/// A value of a pickle. Containers are shared by reference, as in Python.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Integer(i64),
    Text(Rc<str>),
    Container(Reference),
    Global {
        module: Rc<str>,
        name: Rc<str>,
    },
    /// The storage of a tensor's elements.
    Storage {
        /// Name of the storage's class.
        kind: Rc<str>,
        /// The storage's name in the archive.
        key: Rc<str>,
    },
    Tensor(Rc<StoredTensor>),
    /// Any other value.
    Opaque,
    Mark,
}

/// The number of a container.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reference(u32);

#[derive(Debug)]
enum Container {
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

/// A tensor as a view into a storage.
#[derive(Debug)]
pub(super) struct StoredTensor {
    pub storage_kind: Rc<str>,
    pub storage_key: Rc<str>,
    pub offset: i64,
    pub size: Vec<i64>,
    pub stride: Vec<i64>,
}

/// A parsed pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    pub root: Value,
    containers: Vec<Container>,
}

impl Pickle {
    /// The pairs of a dictionary, in insertion order; `None` for any other value.
    pub fn pairs(&self, value: &Value) -> Option<&[(Value, Value)]> {
        match value {
            Value::Container(reference) => match &self.containers[reference.0 as usize] {
                Container::Dict(pairs) => Some(pairs),
                _ => None,
            },
            _ => None,
        }
    }

    /// The value of a text key; `None` unless `value` is a dictionary with that key.
    pub fn entry(&self, value: &Value, key: &str) -> Option<&Value> {
        let has_key = |(found, _): &&(Value, Value)| matches!(found, Value::Text(text) if &**text == key);
        self.pairs(value)?.iter().rev().find(has_key).map(|(_, value)| value)
    }
}

/// Parses one pickle; an error names the opcode and its byte.
pub(super) fn read(bytes: &[u8]) -> Result<Pickle, String> {
    let mut machine =
        Machine { bytes, position: 0, stack: Vec::new(), memo: HashMap::new(), containers: Vec::new(), values: 0 };
    loop {
        let start = machine.position;
        match machine.step() {
            _ if machine.values > MOST_VALUES => {
                return Err(format!(
                    "it makes more than {MOST_VALUES} values by byte {start} of the pickle; save the model's state dict alone"
                ));
            }
            Some(None) => {}
            Some(Some(root)) => return Ok(Pickle { root, containers: machine.containers }),
            None => {
                let opcode = bytes.get(start).map_or("the end".to_string(), |byte| format!("opcode 0x{byte:02x}"));
                return Err(format!("{opcode} at byte {start} of the pickle cannot be read"));
            }
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    position: usize,
    stack: Vec<Value>,
    memo: HashMap<u64, Value>,
    containers: Vec<Container>,
    /// Number of values pushed onto the stack or into the memo.
    values: usize,
}

impl Machine<'_> {
    /// Executes one opcode. `None` if it is invalid, `Some(Some(result))` at the end.
    fn step(&mut self) -> Option<Option<Value>> {
        let opcode = self.take(1)?[0];
        match opcode {
            b'.' => return Some(Some(self.stack.pop()?)),
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.push(Value::Mark),
            b'0' => drop(self.stack.pop()?),
            b'1' => drop(self.pop_to_mark()?),
            b'2' => self.push(self.stack.last()?.clone()),
            b'N' | 0x88 | 0x89 | 0x8f => self.push(Value::Opaque),
            b'J' | b'K' | b'M' | 0x8a | 0x8b => self.integer(opcode)?,
            b'G' => self.opaque(8)?,
            b'X' | 0x8c | 0x8d | b'T' | b'U' | b'B' | b'C' | 0x8e | 0x96 => self.text(opcode)?,
            b')' | b't' | 0x85..=0x87 => self.tuple(opcode)?,
            b']' | b'l' | b'a' | b'e' => self.list(opcode)?,
            b'}' | b'd' | b's' | b'u' => self.dict(opcode)?,
            0x90 => drop(self.pop_to_mark()?),
            0x91 => {
                self.pop_to_mark()?;
                self.stack.push(Value::Opaque);
            }
            b'c' | 0x93 => self.global(opcode)?,
            b'R' | 0x81 | 0x92 | b'o' | b'b' => self.call(opcode)?,
            b'Q' => self.persistent()?,
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo(opcode)?,
            _ => return None,
        }
        Some(None)
    }

    fn push(&mut self, value: Value) {
        self.values += 1;
        self.stack.push(value);
    }

    fn push_container(&mut self, container: Container) -> Option<()> {
        let reference = Reference(u32::try_from(self.containers.len()).ok()?);
        self.containers.push(container);
        self.push(Value::Container(reference));
        Some(())
    }

    /// The container on top of the stack.
    fn top(&mut self) -> Option<&mut Container> {
        match self.stack.last()? {
            Value::Container(reference) => self.containers.get_mut(reference.0 as usize),
            _ => None,
        }
    }

    fn tuple_items(&self, value: &Value) -> Option<&[Value]> {
        match value {
            Value::Container(reference) => match self.containers.get(reference.0 as usize)? {
                Container::Tuple(items) => Some(items),
                _ => None,
            },
            _ => None,
        }
    }

    fn integers(&self, value: &Value) -> Option<Vec<i64>> {
        let items = self.tuple_items(value).filter(|items| items.len() <= MOST_DIMENSIONS)?;
        items.iter().map(|item| if let Value::Integer(number) = item { Some(*number) } else { None }).collect()
    }

    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let bytes = self.bytes.get(self.position..self.position.checked_add(count)?)?;
        self.position += count;
        Some(bytes)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(self.take(bytes)?);
        Some(u64::from_le_bytes(word))
    }

    fn line(&mut self) -> Option<String> {
        let length = self.bytes.get(self.position..)?.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8(self.take(length)?.to_vec()).ok()?;
        self.take(1)?;
        Some(line)
    }

    fn opaque(&mut self, bytes: usize) -> Option<()> {
        self.take(bytes)?;
        self.push(Value::Opaque);
        Some(())
    }

    fn pop_to_mark(&mut self) -> Option<Vec<Value>> {
        let mark = self.stack.iter().rposition(|value| matches!(value, Value::Mark))?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        Some(items)
    }

    fn integer(&mut self, opcode: u8) -> Option<()> {
        let value = match opcode {
            b'J' => i64::from(self.number(4)? as u32 as i32),
            b'K' => self.number(1)? as i64,
            b'M' => self.number(2)? as i64,
            _ => {
                let length = self.number(if opcode == 0x8a { 1 } else { 4 })? as usize;
                let bytes = self.take(length)?;
                let Some(last) = bytes.last() else {
                    self.push(Value::Integer(0));
                    return Some(());
                };
                let mut word = [if *last >= 0x80 { 0xff } else { 0 }; 8];
                if length > word.len() {
                    // Larger than any size of a tensor: the value is never used.
                    self.push(Value::Opaque);
                    return Some(());
                }
                word[..length].copy_from_slice(bytes);
                i64::from_le_bytes(word)
            }
        };
        self.push(Value::Integer(value));
        Some(())
    }

    fn text(&mut self, opcode: u8) -> Option<()> {
        let length_bytes = match opcode {
            0x8c | b'U' | b'C' => 1,
            0x8d | 0x8e | 0x96 => 8,
            _ => 4,
        };
        let length = usize::try_from(self.number(length_bytes)?).ok()?;
        let is_text = matches!(opcode, b'X' | 0x8c | 0x8d);
        let bytes = self.take(length)?;
        let value = match std::str::from_utf8(bytes) {
            Ok(text) if is_text => Value::Text(text.into()),
            _ => Value::Opaque,
        };
        self.push(value);
        Some(())
    }

    fn tuple(&mut self, opcode: u8) -> Option<()> {
        let items = match opcode {
            b')' => Vec::new(),
            b't' => self.pop_to_mark()?,
            _ => self.stack.split_off(self.stack.len().checked_sub(usize::from(opcode - 0x84))?),
        };
        self.push_container(Container::Tuple(items))
    }

    fn list(&mut self, opcode: u8) -> Option<()> {
        let items = match opcode {
            b']' => Vec::new(),
            b'a' => vec![self.stack.pop()?],
            _ => self.pop_to_mark()?,
        };
        if matches!(opcode, b']' | b'l') {
            return self.push_container(Container::List(items));
        }
        self.stack.last()?;
        // Items appended to an opaque value are dropped.
        if let Some(Container::List(list)) = self.top() {
            list.extend(items);
        }
        Some(())
    }

    fn dict(&mut self, opcode: u8) -> Option<()> {
        let items = match opcode {
            b'}' => Vec::new(),
            b's' => self.stack.split_off(self.stack.len().checked_sub(2)?),
            _ => self.pop_to_mark()?,
        };
        let pairs = items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        if matches!(opcode, b'}' | b'd') {
            return self.push_container(Container::Dict(pairs.collect()));
        }
        self.stack.last()?;
        if let Some(Container::Dict(dict)) = self.top() {
            dict.extend(pairs);
        }
        Some(())
    }

    fn global(&mut self, opcode: u8) -> Option<()> {
        let (module, name) = if opcode == b'c' {
            (self.line()?.into(), self.line()?.into())
        } else {
            let (name, module) = (self.stack.pop()?, self.stack.pop()?);
            let (Value::Text(name), Value::Text(module)) = (name, module) else { return None };
            (module, name)
        };
        self.push(Value::Global { module, name });
        Some(())
    }

    /// Calls, constructions and object states: tensors and dictionaries are known, everything else is opaque.
    fn call(&mut self, opcode: u8) -> Option<()> {
        if opcode == b'b' {
            // The state of an object. An ordered dictionary has one, too (its metadata): it is ignored.
            self.stack.pop()?;
            return self.stack.last().map(|_| ());
        }
        let arguments = match opcode {
            b'o' => {
                self.pop_to_mark()?;
                self.push(Value::Opaque);
                return Some(());
            }
            0x92 => {
                self.stack.pop()?;
                self.stack.pop()?
            }
            _ => self.stack.pop()?,
        };
        let callee = self.stack.pop()?;
        let Value::Global { module, name } = &callee else {
            self.push(Value::Opaque);
            return Some(());
        };
        let result = match (&**module, &**name) {
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => self.rebuilt_tensor(&arguments),
            ("torch._utils", "_rebuild_parameter") => {
                self.tuple_items(&arguments).and_then(|arguments| arguments.first().cloned())
            }
            ("collections", "OrderedDict") | ("builtins", "dict") => {
                return self.push_container(Container::Dict(Vec::new()));
            }
            ("builtins", "list") => return self.push_container(Container::List(Vec::new())),
            _ => None,
        };
        self.push(result.unwrap_or(Value::Opaque));
        Some(())
    }

    /// `_rebuild_tensor_v2(storage, offset, size, stride, …)`.
    fn rebuilt_tensor(&self, arguments: &Value) -> Option<Value> {
        let [Value::Storage { kind, key }, Value::Integer(offset), size, stride, ..] = self.tuple_items(arguments)?
        else {
            return None;
        };
        Some(Value::Tensor(Rc::new(StoredTensor {
            storage_kind: Rc::clone(kind),
            storage_key: Rc::clone(key),
            offset: *offset,
            size: self.integers(size)?,
            stride: self.integers(stride)?,
        })))
    }

    fn persistent(&mut self) -> Option<()> {
        let value = self.stack.pop()?;
        let storage = match self.tuple_items(&value) {
            Some([Value::Text(tag), Value::Global { name, .. }, Value::Text(key), ..]) if &**tag == "storage" => {
                Some(Value::Storage { kind: Rc::clone(name), key: Rc::clone(key) })
            }
            _ => None,
        };
        self.push(storage.unwrap_or(Value::Opaque));
        Some(())
    }

    fn memo(&mut self, opcode: u8) -> Option<()> {
        let key = match opcode {
            b'q' | b'h' => self.number(1)?,
            b'r' | b'j' => self.number(4)?,
            _ => self.memo.len() as u64,
        };
        if matches!(opcode, b'h' | b'j') {
            self.push(self.memo.get(&key)?.clone());
        } else {
            self.values += 1;
            self.memo.insert(key, self.stack.last()?.clone());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The items of a list or tuple.
    fn items<'a>(pickle: &'a Pickle, value: &Value) -> &'a [Value] {
        let Value::Container(reference) = value else { panic!("{value:?}") };
        match &pickle.containers[reference.0 as usize] {
            Container::List(items) | Container::Tuple(items) => items,
            Container::Dict(_) => panic!("a dictionary"),
        }
    }

    #[test]
    fn containers_are_shared_and_unknown_objects_are_opaque() {
        // {'a': x = [], 'b': x, 'c': some.Class()}, where x is filled after it was stored.
        let bytes = b"\x80\x02}(X\x01\0\0\0a]q\x01X\x01\0\0\0bh\x01K\x05aX\x01\0\0\0cc__main__\nClass\n)Ru.";
        let pickle = read(bytes).unwrap();
        let entry = |key| pickle.entry(&pickle.root, key);
        for key in ["a", "b"] {
            assert!(matches!(items(&pickle, entry(key).unwrap()), [Value::Integer(5)]));
        }
        assert!(matches!(entry("c"), Some(Value::Opaque)));
        assert!(entry("d").is_none());
    }

    #[test]
    fn no_depth_of_nesting_takes_the_stack() {
        // (((…))): each a tuple of the previous one; and [[[…]]], each appended to the one below it.
        let depth = MOST_VALUES / 5;
        let tuples = [b")".to_vec(), b"\x85".repeat(depth), b".".to_vec()].concat();
        let lists = [b"]".repeat(depth), b"a".repeat(depth - 1), b".".to_vec()].concat();
        // x = []; x.append(x)
        let cycle = b"]q\x01h\x01a.".to_vec();
        for bytes in [tuples, lists, cycle] {
            let pickle = read(&bytes).unwrap();
            assert!(items(&pickle, &pickle.root).len() == 1 && !format!("{:?}", pickle.root).is_empty());
        }
    }

    #[test]
    fn more_values_than_a_state_dict_has_are_refused() {
        for opcode in [b"]", b")", b"N", b"(", b"}"] {
            let error = read(&opcode.repeat(10 << 20)).unwrap_err();
            assert!(error.contains("more than 500000 values by byte 500000"), "{error}");
        }
        let memo = [b"N".to_vec(), b"\x94".repeat(1 << 20)].concat();
        assert!(read(&memo).unwrap_err().contains("more than 500000 values"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        assert_eq!(read(b"\x80\x02\xf0.").unwrap_err(), "opcode 0xf0 at byte 2 of the pickle cannot be read");
        assert!(read(b"\x80\x02").unwrap_err().contains("the end at byte 2"));
        assert!(read(b"s.").is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
