//! Builds an ONNX graph operator by operator.

use prost::Message;

use super::message::{
    Attribute, Dimension, Entry, Graph, Model, Node, OperatorSet, Shape, TensorData, TensorType, ValueInfo, ValueType,
    attribute, element,
};

/// Version of the operators, and (`IR_VERSION`) of the matching file format.
const OPSET: i64 = 18;
const IR_VERSION: i64 = 8;

/// A value of the graph: an input, a constant, or an operator's output.
#[derive(Clone, Debug)]
pub struct Value(String);

/// Size of a dimension of an input or output.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    Fixed(i64),
    /// Size that varies between calls; equal names are equal sizes.
    Any(&'static str),
}

/// Element type of a value.
#[derive(Clone, Copy, Debug)]
pub enum Element {
    Float,
    Double,
    Int64,
}

impl Element {
    /// Its number in the file.
    pub fn number(self) -> i32 {
        match self {
            Self::Float => element::FLOAT,
            Self::Double => element::DOUBLE,
            Self::Int64 => element::INT64,
        }
    }
}

/// An attribute of an operator.
pub type Setting<'a> = (&'a str, Content<'a>);

/// Value of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    Float(f32),
    Integer(i64),
    Text(&'a str),
    /// A tensor of one element, f32.
    Scalar(f32),
    /// A tensor of one element, f64.
    WideScalar(f64),
}

/// A graph under construction.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
}

impl Builder {
    /// Adds an input of the graph.
    pub fn input(&mut self, name: &str, element: Element, sizes: &[Size]) -> Value {
        self.graph.inputs.push(value_info(name, element, sizes));
        Value(name.to_owned())
    }

    /// Adds a constant f32 tensor.
    pub fn floats(&mut self, name: &str, dimensions: &[i64], values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(name.to_owned(), Element::Float, dimensions, bytes)
    }

    /// Adds a constant f32 number without dimensions.
    pub fn number(&mut self, value: f32) -> Value {
        let name = self.constant_name();
        self.floats(&name, &[], &[value])
    }

    /// Adds a constant f64 tensor.
    pub fn wide(&mut self, dimensions: &[i64], values: &[f64]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(self.constant_name(), Element::Double, dimensions, bytes)
    }

    /// Adds a constant vector of integers.
    pub fn integers(&mut self, values: &[i64]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(self.constant_name(), Element::Int64, &[values.len() as i64], bytes)
    }

    /// Adds a constant integer without dimensions.
    pub fn integer(&mut self, value: i64) -> Value {
        self.constant(self.constant_name(), Element::Int64, &[], value.to_le_bytes().to_vec())
    }

    /// Adds `operator` applied to `inputs` and returns its output.
    pub fn apply(&mut self, operator: &str, inputs: &[&Value], settings: &[Setting<'_>]) -> Value {
        let name = format!("{operator}.{}", self.graph.nodes.len());
        self.graph.nodes.push(Node {
            inputs: inputs.iter().map(|value| value.0.clone()).collect(),
            outputs: vec![name.clone()],
            name: Some(name.clone()),
            operator: Some(operator.to_owned()),
            attributes: settings.iter().map(|&(name, content)| attribute_of(name, content)).collect(),
        });
        Value(name)
    }

    /// Makes a value the output `name` of the graph.
    pub fn output(&mut self, value: &Value, name: &str, element: Element, sizes: &[Size]) {
        self.graph.nodes.push(Node {
            inputs: vec![value.0.clone()],
            outputs: vec![name.to_owned()],
            name: Some(name.to_owned()),
            operator: Some("Identity".to_owned()),
            attributes: Vec::new(),
        });
        self.graph.outputs.push(value_info(name, element, sizes));
    }

    /// The model as bytes; `metadata` is stored with it.
    pub fn finish(mut self, metadata: &[(&str, String)]) -> Vec<u8> {
        self.graph.name = Some("kdgat".to_owned());
        let entry = |(key, value): &(&str, String)| Entry { key: Some((*key).to_owned()), value: Some(value.clone()) };
        let model = Model {
            ir_version: Some(IR_VERSION),
            producer_name: Some("kdgat".to_owned()),
            producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            graph: Some(self.graph),
            opset_import: vec![OperatorSet { domain: Some(String::new()), version: Some(OPSET) }],
            metadata: metadata.iter().map(entry).collect(),
        };
        model.encode_to_vec()
    }

    fn constant_name(&self) -> String {
        format!("constant.{}", self.graph.initializers.len())
    }

    fn constant(&mut self, name: String, element: Element, dimensions: &[i64], bytes: Vec<u8>) -> Value {
        self.graph.initializers.push(TensorData {
            dimensions: dimensions.to_vec(),
            element: Some(element.number()),
            name: Some(name.clone()),
            bytes: Some(bytes),
        });
        Value(name)
    }
}

fn attribute_of(name: &str, content: Content<'_>) -> Attribute {
    let mut made = Attribute { name: Some(name.to_owned()), ..Attribute::default() };
    made.kind = Some(match content {
        Content::Float(value) => {
            made.float = Some(value);
            attribute::FLOAT
        }
        Content::Integer(value) => {
            made.integer = Some(value);
            attribute::INTEGER
        }
        Content::Text(text) => {
            made.text = Some(text.as_bytes().to_vec());
            attribute::TEXT
        }
        Content::Scalar(value) => {
            made.tensor = Some(scalar(Element::Float, value.to_le_bytes().to_vec()));
            attribute::TENSOR
        }
        Content::WideScalar(value) => {
            made.tensor = Some(scalar(Element::Double, value.to_le_bytes().to_vec()));
            attribute::TENSOR
        }
    });
    made
}

fn scalar(element: Element, bytes: Vec<u8>) -> TensorData {
    TensorData { dimensions: vec![1], element: Some(element.number()), name: None, bytes: Some(bytes) }
}

fn value_info(name: &str, element: Element, sizes: &[Size]) -> ValueInfo {
    let dimension = |size: &Size| match *size {
        Size::Fixed(size) => Dimension { size: Some(size), name: None },
        Size::Any(name) => Dimension { size: None, name: Some(name.to_owned()) },
    };
    let shape = Some(Shape { dimensions: sizes.iter().map(dimension).collect() });
    let tensor = Some(TensorType { element: Some(element.number()), shape });
    ValueInfo { name: Some(name.to_owned()), value_type: Some(ValueType { tensor }) }
}
