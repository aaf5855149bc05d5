//! Builds an ONNX graph operator by operator.

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
    Int64,
}

/// An attribute of an operator.
pub type Setting<'a> = (&'a str, Content<'a>);

/// Value of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    Float(f32),
    Integer(i64),
    Text(&'a str),
    /// A tensor of one element.
    Scalar(f32),
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
        self.constant(name.to_owned(), element::FLOAT, dimensions, bytes)
    }

    /// Adds a constant vector of integers.
    pub fn integers(&mut self, values: &[i64]) -> Value {
        let name = format!("integers.{}", self.graph.initializers.len());
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(name, element::INT64, &[values.len() as i64], bytes)
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

    /// Finishes the model: `value` becomes the output `name`; `metadata` is stored with it.
    pub fn finish(
        mut self,
        value: &Value,
        name: &str,
        (element, sizes): (Element, &[Size]),
        metadata: &[(&str, String)],
    ) -> Model {
        self.graph.nodes.push(Node {
            inputs: vec![value.0.clone()],
            outputs: vec![name.to_owned()],
            name: Some(name.to_owned()),
            operator: Some("Identity".to_owned()),
            attributes: Vec::new(),
        });
        self.graph.outputs.push(value_info(name, element, sizes));
        self.graph.name = Some("kdgat".to_owned());
        let entry = |(key, value): &(&str, String)| Entry { key: Some((*key).to_owned()), value: Some(value.clone()) };
        Model {
            ir_version: Some(IR_VERSION),
            producer_name: Some("kdgat".to_owned()),
            producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            graph: Some(self.graph),
            opset_import: vec![OperatorSet { domain: Some(String::new()), version: Some(OPSET) }],
            metadata: metadata.iter().map(entry).collect(),
        }
    }

    fn constant(&mut self, name: String, element: i32, dimensions: &[i64], bytes: Vec<u8>) -> Value {
        self.graph.initializers.push(TensorData {
            dimensions: dimensions.to_vec(),
            element: Some(element),
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
            let bytes = Some(value.to_le_bytes().to_vec());
            made.tensor = Some(TensorData { dimensions: vec![1], element: Some(element::FLOAT), name: None, bytes });
            attribute::TENSOR
        }
    });
    made
}

fn value_info(name: &str, element: Element, sizes: &[Size]) -> ValueInfo {
    let element = match element {
        Element::Float => element::FLOAT,
        Element::Int64 => element::INT64,
    };
    let dimension = |size: &Size| match *size {
        Size::Fixed(size) => Dimension { size: Some(size), name: None },
        Size::Any(name) => Dimension { size: None, name: Some(name.to_owned()) },
    };
    let shape = Some(Shape { dimensions: sizes.iter().map(dimension).collect() });
    let tensor = Some(TensorType { element: Some(element), shape });
    ValueInfo { name: Some(name.to_owned()), value_type: Some(ValueType { tensor }) }
}
