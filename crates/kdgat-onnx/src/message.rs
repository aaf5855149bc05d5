//! ONNX messages (`onnx.proto` of version 1.13, opset 18), limited to what the models here need. Tags are the field numbers in
//! that file.

use prost::Message;

/// `ModelProto`.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSet>,
    #[prost(message, repeated, tag = "14")]
    pub metadata: Vec<Entry>,
}

/// `OperatorSetIdProto`.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSet {
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

/// `StringStringEntryProto`.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// `GraphProto`: nodes in topological order.
#[derive(Clone, PartialEq, Message)]
pub struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Node>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub initializers: Vec<TensorData>,
    #[prost(message, repeated, tag = "11")]
    pub inputs: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub outputs: Vec<ValueInfo>,
}

/// `NodeProto`.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    #[prost(string, repeated, tag = "1")]
    pub inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub operator: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub attributes: Vec<Attribute>,
}

/// `AttributeProto`.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub float: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub integer: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub text: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    pub tensor: Option<TensorData>,
    /// One of the constants of [`attribute`].
    #[prost(int32, optional, tag = "20")]
    pub kind: Option<i32>,
}

/// Kinds of attributes: `AttributeProto.AttributeType`.
pub mod attribute {
    pub const FLOAT: i32 = 1;
    pub const INTEGER: i32 = 2;
    pub const TEXT: i32 = 3;
    pub const TENSOR: i32 = 4;
}

/// `TensorProto`, with elements as little-endian bytes.
#[derive(Clone, PartialEq, Message)]
pub struct TensorData {
    #[prost(int64, repeated, tag = "1")]
    pub dimensions: Vec<i64>,
    /// One of the constants of [`element`].
    #[prost(int32, optional, tag = "2")]
    pub element: Option<i32>,
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub bytes: Option<Vec<u8>>,
}

/// Types of elements: `TensorProto.DataType`.
pub mod element {
    pub const FLOAT: i32 = 1;
    pub const INT64: i32 = 7;
    pub const DOUBLE: i32 = 11;
}

/// `ValueInfoProto`.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfo {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub value_type: Option<ValueType>,
}

/// `TypeProto`.
#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    #[prost(message, optional, tag = "1")]
    pub tensor: Option<TensorType>,
}

/// `TypeProto.Tensor`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    #[prost(int32, optional, tag = "1")]
    pub element: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
}

/// `TensorShapeProto`.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub dimensions: Vec<Dimension>,
}

/// `TensorShapeProto.Dimension`: a fixed size, or the name of a size that varies between calls.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub size: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}
