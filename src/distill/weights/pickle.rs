//! Reads the part of Python's pickle format that PyTorch's state dicts and Lightning's checkpoints use.
//!
//! Nothing is ever imported or called: what is not a tensor, a number, a text or a container becomes opaque. So a
//! file from anywhere can be read without running its author's code.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A value of a pickle. Containers are shared, as Python's are.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Integer(i64),
    Text(Rc<str>),
    Tuple(Rc<Vec<Value>>),
    List(Rc<RefCell<Vec<Value>>>),
    Dict(Rc<RefCell<Vec<(Value, Value)>>>),
    Global(Rc<str>),
    /// Where a tensor's elements are: type of the storage, its name in the archive.
    Storage {
        kind: Rc<str>,
        key: Rc<str>,
    },
    Tensor(Rc<StoredTensor>),
    /// Anything else.
    Opaque,
    Mark,
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

impl Value {
    /// The value of a text key, if this is a dictionary that has it.
    pub fn entry(&self, key: &str) -> Option<Value> {
        let Value::Dict(entries) = self else { return None };
        let entries = entries.borrow();
        let found = entries.iter().rev().find(|(found, _)| matches!(found, Value::Text(text) if &**text == key));
        found.map(|(_, value)| value.clone())
    }

    fn integers(&self) -> Option<Vec<i64>> {
        let Value::Tuple(items) = self else { return None };
        items.iter().map(|item| if let Value::Integer(number) = item { Some(*number) } else { None }).collect()
    }
}

/// Reads one pickle; an error says what was met, and at which byte.
pub(super) fn read(bytes: &[u8]) -> Result<Value, String> {
    let mut machine = Machine { bytes, position: 0, stack: Vec::new(), memo: HashMap::new() };
    loop {
        let start = machine.position;
        match machine.step() {
            Some(None) => {}
            Some(Some(value)) => return Ok(value),
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
}

impl Machine<'_> {
    /// Carries out one opcode: nothing if it cannot be, the result at the end.
    fn step(&mut self) -> Option<Option<Value>> {
        let opcode = self.take(1)?[0];
        match opcode {
            b'.' => return Some(Some(self.stack.pop()?)),
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.stack.push(Value::Mark),
            b'0' => drop(self.stack.pop()?),
            b'1' => drop(self.pop_to_mark()?),
            b'2' => self.stack.push(self.stack.last()?.clone()),
            b'N' | 0x88 | 0x89 | 0x8f => self.stack.push(Value::Opaque),
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
        self.stack.push(Value::Opaque);
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
                    self.stack.push(Value::Integer(0));
                    return Some(());
                };
                let mut word = [if *last >= 0x80 { 0xff } else { 0 }; 8];
                if length > word.len() {
                    // Larger than any size of a tensor: nobody asks for its value.
                    self.stack.push(Value::Opaque);
                    return Some(());
                }
                word[..length].copy_from_slice(bytes);
                i64::from_le_bytes(word)
            }
        };
        self.stack.push(Value::Integer(value));
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
        self.stack.push(value);
        Some(())
    }

    fn tuple(&mut self, opcode: u8) -> Option<()> {
        let items = match opcode {
            b')' => Vec::new(),
            b't' => self.pop_to_mark()?,
            _ => self.stack.split_off(self.stack.len().checked_sub(usize::from(opcode - 0x84))?),
        };
        self.stack.push(Value::Tuple(Rc::new(items)));
        Some(())
    }

    fn list(&mut self, opcode: u8) -> Option<()> {
        let items = match opcode {
            b']' => Vec::new(),
            b'a' => vec![self.stack.pop()?],
            _ => self.pop_to_mark()?,
        };
        if matches!(opcode, b']' | b'l') {
            self.stack.push(Value::List(Rc::new(RefCell::new(items))));
        } else if let Value::List(list) = self.stack.last()? {
            // What is appended to something opaque is of no use to anyone.
            list.borrow_mut().extend(items);
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
            self.stack.push(Value::Dict(Rc::new(RefCell::new(pairs.collect()))));
        } else if let Value::Dict(dict) = self.stack.last()? {
            dict.borrow_mut().extend(pairs);
        }
        Some(())
    }

    fn global(&mut self, opcode: u8) -> Option<()> {
        let (module, name) = if opcode == b'c' {
            (self.line()?, self.line()?)
        } else {
            let (name, module) = (self.stack.pop()?, self.stack.pop()?);
            let (Value::Text(name), Value::Text(module)) = (name, module) else { return None };
            (module.to_string(), name.to_string())
        };
        self.stack.push(Value::Global(format!("{module}.{name}").into()));
        Some(())
    }

    /// Calls, constructions and states of objects: tensors and dictionaries are known, the rest is opaque.
    fn call(&mut self, opcode: u8) -> Option<()> {
        if opcode == b'b' {
            // The state of an object. An ordered dictionary has one, too (its metadata): it stays what it is.
            self.stack.pop()?;
            return self.stack.last().map(|_| ());
        }
        let arguments = match opcode {
            b'o' => {
                self.pop_to_mark()?;
                self.stack.push(Value::Opaque);
                return Some(());
            }
            0x92 => {
                self.stack.pop()?;
                self.stack.pop()?
            }
            _ => self.stack.pop()?,
        };
        let callee = self.stack.pop()?;
        let result = match (&callee, &arguments) {
            (Value::Global(name), Value::Tuple(arguments)) => match &**name {
                "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor" => rebuilt_tensor(arguments),
                "torch._utils._rebuild_parameter" => arguments.first().cloned(),
                "collections.OrderedDict" | "builtins.dict" => Some(Value::Dict(Rc::default())),
                "builtins.list" => Some(Value::List(Rc::default())),
                _ => None,
            },
            _ => None,
        };
        self.stack.push(result.unwrap_or(Value::Opaque));
        Some(())
    }

    fn persistent(&mut self) -> Option<()> {
        let value = match self.stack.pop()? {
            Value::Tuple(items) => match items.as_slice() {
                [Value::Text(tag), Value::Global(kind), Value::Text(key), ..] if &**tag == "storage" => {
                    Value::Storage { kind: Rc::clone(kind), key: Rc::clone(key) }
                }
                _ => Value::Opaque,
            },
            _ => Value::Opaque,
        };
        self.stack.push(value);
        Some(())
    }

    fn memo(&mut self, opcode: u8) -> Option<()> {
        let key = match opcode {
            b'q' | b'h' => self.number(1)?,
            b'r' | b'j' => self.number(4)?,
            _ => self.memo.len() as u64,
        };
        if matches!(opcode, b'h' | b'j') {
            self.stack.push(self.memo.get(&key)?.clone());
        } else {
            self.memo.insert(key, self.stack.last()?.clone());
        }
        Some(())
    }
}

/// `_rebuild_tensor_v2(storage, offset, size, stride, …)`.
fn rebuilt_tensor(arguments: &[Value]) -> Option<Value> {
    let [Value::Storage { kind, key }, Value::Integer(offset), size, stride, ..] = arguments else { return None };
    Some(Value::Tensor(Rc::new(StoredTensor {
        storage_kind: Rc::clone(kind),
        storage_key: Rc::clone(key),
        offset: *offset,
        size: size.integers()?,
        stride: stride.integers()?,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn containers_are_shared_and_unknown_objects_are_opaque() {
        // {'a': x = [], 'b': x, 'c': some.Class()}, with x filled after it was stored.
        let bytes = b"\x80\x02}(X\x01\0\0\0a]q\x01X\x01\0\0\0bh\x01K\x05aX\x01\0\0\0cc__main__\nClass\n)Ru.";
        let value = read(bytes).unwrap();
        let Some(Value::List(list)) = value.entry("a") else { panic!("{value:?}") };
        assert!(matches!(list.borrow().as_slice(), [Value::Integer(5)]));
        assert!(matches!(value.entry("c"), Some(Value::Opaque)));
        assert!(value.entry("d").is_none());
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
