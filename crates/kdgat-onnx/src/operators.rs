//! Layers and sums over edges as ONNX operators. Sums are `ScatterElements`, which adds in the order of its updates.

use kdgat_nn::fused::norm::EPSILON;
use kdgat_nn::gat_conv::NEGATIVE_SLOPE;
use kdgat_nn::weights::StateDict;
use tch::{Device, Kind, Tensor};

use super::OnnxError;
use super::builder::{Builder, Content, Element, Setting, Size, Value};

/// Operates on rows.
pub(crate) const ALONG_ROWS: Setting<'static> = ("axis", Content::Integer(0));
/// Operates on columns.
pub(crate) const ALONG_COLUMNS: Setting<'static> = ("axis", Content::Integer(1));

/// Combination of the rows that are scattered to one place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reduction {
    Sum,
    /// The maximum, and this number where nothing is scattered to.
    Max(f32),
}

/// Target rows of a scatter.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Row of each update, `[updates]`.
    pub index: Value,
    /// Number of rows, `[1]`.
    pub count: Value,
}

/// Edges of a graph, or of several.
#[derive(Clone, Debug)]
pub(crate) struct Edges {
    /// `[edges]`
    pub source: Value,
    /// `[edges]`, of `[nodes]`.
    pub target: Places,
}

/// A graph under construction, and the tensors of the model.
pub(crate) struct Operators<'a> {
    pub builder: Builder,
    state: &'a StateDict,
}

impl<'a> Operators<'a> {
    pub fn new(state: &'a StateDict) -> Self {
        Self { builder: Builder::default(), state }
    }

    /// The inputs `source` and `target`, `[edges]`, between the rows of `nodes`.
    pub fn edges(&mut self, nodes: &Value) -> Edges {
        let edges = [Size::Any("edges")];
        let source = self.builder.input("source", Element::Int64, &edges);
        let index = self.builder.input("target", Element::Int64, &edges);
        Edges { source, target: Places { index, count: self.num_rows(nodes) } }
    }

    /// The input `graph`, `[nodes]`: the graph of each node, of which the last has the largest number.
    pub fn graphs(&mut self) -> Places {
        let index = self.builder.input("graph", Element::Int64, &[Size::Any("nodes")]);
        let last = self.apply("ReduceMax", &[&index], &[("keepdims", Content::Integer(1))]);
        let one = self.builder.integers(&[1]);
        let count = self.apply("Add", &[&last, &one], &[]);
        Places { index, count }
    }

    /// The edges with one from each node to itself behind them.
    pub fn with_loops(&mut self, edges: &Edges) -> Edges {
        let [first, step] = [0, 1].map(|value| self.builder.integer(value));
        let count = self.apply("Squeeze", &[&edges.target.count], &[]);
        let nodes = self.apply("Range", &[&first, &count, &step], &[]);
        let source = self.apply("Concat", &[&edges.source, &nodes], &[ALONG_ROWS]);
        let index = self.apply("Concat", &[&edges.target.index, &nodes], &[ALONG_ROWS]);
        Edges { source, target: Places { index, count: edges.target.count.clone() } }
    }

    /// Adds an operator.
    pub fn apply(&mut self, operator: &str, inputs: &[&Value], settings: &[Setting<'_>]) -> Value {
        self.builder.apply(operator, inputs, settings)
    }

    /// A tensor of the model, f32.
    pub fn weight(&mut self, name: &str) -> Result<Value, OnnxError> {
        let tensor = self.state.get(name).ok_or_else(|| OnnxError::Missing(name.to_owned()))?;
        Ok(self.builder.floats(name, &tensor.size(), &floats(tensor)?))
    }

    /// Linear layer x Wᵀ, plus b if it has a bias.
    pub fn linear(&mut self, x: &Value, layer: &str, has_bias: bool) -> Result<Value, OnnxError> {
        let mut inputs = vec![x.clone(), self.weight(&format!("{layer}.weight"))?];
        if has_bias {
            inputs.push(self.weight(&format!("{layer}.bias"))?);
        }
        let inputs: Vec<&Value> = inputs.iter().collect();
        Ok(self.apply("Gemm", &inputs, &[("transB", Content::Integer(1))]))
    }

    /// Adds a vector of the model to each row.
    pub fn with_bias(&mut self, x: &Value, name: &str) -> Result<Value, OnnxError> {
        let bias = self.weight(name)?;
        Ok(self.apply("Add", &[x, &bias], &[]))
    }

    /// Batch norm by the running moments: (x − mean) / √(variance + ε) · weight + bias.
    pub fn batch_norm(&mut self, x: &Value, path: &str) -> Result<Value, OnnxError> {
        let mut inputs = vec![x.clone()];
        for name in ["weight", "bias", "running_mean", "running_var"] {
            inputs.push(self.weight(&format!("{path}.{name}"))?);
        }
        let inputs: Vec<&Value> = inputs.iter().collect();
        Ok(self.apply("BatchNormalization", &inputs, &[("epsilon", Content::Float(EPSILON as f32))]))
    }

    /// Rectified linear unit.
    pub fn relu(&mut self, x: &Value) -> Value {
        self.apply("Relu", &[x], &[])
    }

    /// Leaky ReLU of attention scores.
    pub fn leaky_relu(&mut self, x: &Value) -> Value {
        self.apply("LeakyRelu", &[x], &[("alpha", Content::Float(NEGATIVE_SLOPE as f32))])
    }

    /// Rows `index` of a tensor.
    pub fn rows(&mut self, of: &Value, index: &Value) -> Value {
        self.apply("Gather", &[of, index], &[ALONG_ROWS])
    }

    /// Number of rows, `[1]`.
    pub fn num_rows(&mut self, of: &Value) -> Value {
        let shape = self.apply("Shape", &[of], &[]);
        let first = self.builder.integers(&[0]);
        self.apply("Gather", &[&shape, &first], &[ALONG_ROWS])
    }

    /// Combines updates, `[_, columns]`, by their places: → `[rows, columns]`.
    pub fn scattered(&mut self, reduction: Reduction, places: &Places, columns: i64, updates: &Value) -> Value {
        let (name, initial) = match reduction {
            Reduction::Sum => ("add", 0.0),
            Reduction::Max(least) => ("max", least),
        };
        self.scattered_into(name, places, (columns, Content::Scalar(initial)), updates)
    }

    /// Sums of updates of type f64.
    pub fn wide_sums(&mut self, places: &Places, columns: i64, updates: &Value) -> Value {
        self.scattered_into("add", places, (columns, Content::WideScalar(0.0)), updates)
    }

    fn scattered_into(
        &mut self,
        reduction: &str,
        places: &Places,
        (columns, initial): (i64, Content<'_>),
        updates: &Value,
    ) -> Value {
        let columns = self.builder.integers(&[columns]);
        let shape = self.apply("Concat", &[&places.count, &columns], &[ALONG_ROWS]);
        let data = self.apply("ConstantOfShape", &[&shape], &[("value", initial)]);
        let index = self.with_axis(&places.index, 1);
        let shape = self.apply("Shape", &[updates], &[]);
        let index = self.apply("Expand", &[&index, &shape], &[]);
        self.apply("ScatterElements", &[&data, &index, updates], &[ALONG_ROWS, ("reduction", Content::Text(reduction))])
    }

    /// Sums of the sources' rows for each target, `[nodes, columns]`.
    pub fn neighbour_sums(&mut self, x: &Value, edges: &Edges, columns: i64) -> Value {
        let of_edges = self.rows(x, &edges.source);
        self.scattered(Reduction::Sum, &edges.target, columns, &of_edges)
    }

    /// Number of rows for each place, `[places, 1]`, f32.
    pub fn counts(&mut self, places: &Places) -> Value {
        let rows = self.apply("Shape", &[&places.index], &[]);
        let one = self.builder.integers(&[1]);
        let shape = self.apply("Concat", &[&rows, &one], &[ALONG_ROWS]);
        let ones = self.apply("ConstantOfShape", &[&shape], &[("value", Content::Scalar(1.0))]);
        self.scattered(Reduction::Sum, places, 1, &ones)
    }

    /// Means of the rows of each place, `[places, columns]`.
    pub fn means(&mut self, x: &Value, places: &Places, columns: i64) -> Value {
        let sums = self.scattered(Reduction::Sum, places, columns, x);
        let counts = self.counts(places);
        self.apply("Div", &[&sums, &counts], &[])
    }

    /// Number of edges to each node and, the node itself counted, one more, `[nodes, 1]`, f32.
    pub fn degrees(&mut self, edges: &Edges) -> Value {
        let counts = self.counts(&edges.target);
        let one = self.builder.number(1.0);
        self.apply("Add", &[&counts, &one], &[])
    }

    /// Means of the sources' rows for each target, 0 for a target without sources, `[nodes, columns]`.
    pub fn neighbour_means(&mut self, x: &Value, edges: &Edges, columns: i64) -> Value {
        let sums = self.neighbour_sums(x, edges, columns);
        let counts = self.counts(&edges.target);
        let one = self.builder.number(1.0);
        let counts = self.apply("Max", &[&counts, &one], &[]);
        self.apply("Div", &[&sums, &counts], &[])
    }

    /// Σ_j x_j / √(D_i D_j) over the neighbours and the node itself, D counting both, `[nodes, columns]`.
    pub fn symmetric_sums(&mut self, x: &Value, edges: &Edges, columns: i64) -> Value {
        let degrees = self.degrees(edges);
        let roots = self.apply("Sqrt", &[&degrees], &[]);
        let scaled = self.apply("Div", &[x, &roots], &[]);
        let sums = self.neighbour_sums(&scaled, edges, columns);
        let sums = self.apply("Add", &[&sums, &scaled], &[]);
        self.apply("Div", &[&sums, &roots], &[])
    }

    /// GraphSAGE's layer with the mean aggregator, W_l·mean_j x_j + b + W_r·x_i, for `x` with `columns` columns.
    pub fn sage(&mut self, x: &Value, layer: &str, edges: &Edges, columns: i64) -> Result<Value, OnnxError> {
        let means = self.neighbour_means(x, edges, columns);
        let neighbours = self.linear(&means, &format!("{layer}.lin_l"), true)?;
        let own = self.linear(x, &format!("{layer}.lin_r"), false)?;
        Ok(self.apply("Add", &[&neighbours, &own], &[]))
    }

    /// Softmax of scores, `[_, columns]`, over the rows of each place.
    pub fn softmax(&mut self, scores: &Value, places: &Places, columns: i64) -> Value {
        let highest = self.scattered(Reduction::Max(f32::MIN), places, columns, scores);
        let highest = self.rows(&highest, &places.index);
        let below = self.apply("Sub", &[scores, &highest], &[]);
        let exponentials = self.apply("Exp", &[&below], &[]);
        let sums = self.scattered(Reduction::Sum, places, columns, &exponentials);
        let sums = self.rows(&sums, &places.index);
        self.apply("Div", &[&exponentials, &sums], &[])
    }

    /// Values `[nodes, heads, channels]` and scores `[edges, heads]` of GAT, without bias.
    pub fn gat_scores(
        &mut self,
        x: &Value,
        layer: &str,
        edges: &Edges,
        heads: [i64; 2],
    ) -> Result<(Value, Value), OnnxError> {
        let values = self.linear(x, &format!("{layer}.lin"), false)?;
        let values = self.heads(&values, heads);
        let mut of_nodes = |name: &str| -> Result<Value, OnnxError> {
            let vector = self.weight(&format!("{layer}.{name}"))?;
            let products = self.apply("Mul", &[&values, &vector], &[]);
            Ok(self.sums_along(&products, 2))
        };
        let (as_source, as_target) = (of_nodes("att_src")?, of_nodes("att_dst")?);
        let (as_source, as_target) = (self.rows(&as_source, &edges.source), self.rows(&as_target, &edges.target.index));
        let sums = self.apply("Add", &[&as_source, &as_target], &[]);
        Ok((values, self.leaky_relu(&sums)))
    }

    /// Values `[nodes, heads, channels]` and scores `[edges, heads]` of GATv2, `of_edges` being the mapped edge features, `[edges, heads,
    /// channels]`.
    pub fn gatv2_scores(
        &mut self,
        x: &Value,
        layer: &str,
        edges: &Edges,
        heads: [i64; 2],
        of_edges: Option<&Value>,
    ) -> Result<(Value, Value), OnnxError> {
        let source = self.linear(x, &format!("{layer}.lin_l"), true)?;
        let source = self.heads(&source, heads);
        let target = self.linear(x, &format!("{layer}.lin_r"), true)?;
        let target = self.heads(&target, heads);
        let (of_target, of_source) = (self.rows(&target, &edges.target.index), self.rows(&source, &edges.source));
        let mut sums = self.apply("Add", &[&of_target, &of_source], &[]);
        if let Some(of_edges) = of_edges {
            sums = self.apply("Add", &[&sums, of_edges], &[]);
        }
        let activated = self.leaky_relu(&sums);
        let vector = self.weight(&format!("{layer}.att"))?;
        let products = self.apply("Mul", &[&activated, &vector], &[]);
        Ok((source, self.sums_along(&products, 2)))
    }

    /// Sums of the sources' values weighted by the softmax of the edges' scores, `[nodes, heads * channels]`, without bias.
    pub fn attended(&mut self, values: &Value, scores: &Value, edges: &Edges, [heads, channels]: [i64; 2]) -> Value {
        let weights = self.softmax(scores, &edges.target, heads);
        let weights = self.with_axis(&weights, 2);
        let of_edges = self.rows(values, &edges.source);
        let messages = self.apply("Mul", &[&of_edges, &weights], &[]);
        let messages = self.reshaped(&messages, &[-1, heads * channels]);
        self.scattered(Reduction::Sum, &edges.target, heads * channels, &messages)
    }

    /// `[rows, heads * channels]` → `[rows, heads, channels]`.
    pub fn heads(&mut self, x: &Value, [heads, channels]: [i64; 2]) -> Value {
        self.reshaped(x, &[-1, heads, channels])
    }

    /// The tensor with other sizes, of which one may be −1.
    pub fn reshaped(&mut self, x: &Value, sizes: &[i64]) -> Value {
        let sizes = self.builder.integers(sizes);
        self.apply("Reshape", &[x, &sizes], &[])
    }

    /// The tensor with another axis of size 1.
    pub fn with_axis(&mut self, x: &Value, axis: i64) -> Value {
        let axes = self.builder.integers(&[axis]);
        self.apply("Unsqueeze", &[x, &axes], &[])
    }

    /// Sums along an axis, which is removed.
    pub fn sums_along(&mut self, x: &Value, axis: i64) -> Value {
        let axes = self.builder.integers(&[axis]);
        self.apply("ReduceSum", &[x, &axes], &[("keepdims", Content::Integer(0))])
    }

    /// Standardises each column: (x − mean) / deviation.
    pub fn standardised(&mut self, name: &str, x: &Value, mean: &[f32], deviation: &[f32]) -> Value {
        let mean = self.builder.floats(&format!("{name}.mean"), &[mean.len() as i64], mean);
        let deviation = self.builder.floats(&format!("{name}.deviation"), &[deviation.len() as i64], deviation);
        let centred = self.apply("Sub", &[x, &mean], &[]);
        self.apply("Div", &[&centred, &deviation], &[])
    }

    /// The tensor with elements of another type.
    pub fn cast(&mut self, x: &Value, element: Element) -> Value {
        self.apply("Cast", &[x], &[("to", Content::Integer(i64::from(element.number())))])
    }
}

/// The elements of a tensor, in row-major order.
fn floats(tensor: &Tensor) -> Result<Vec<f32>, OnnxError> {
    let flat = tensor.f_detach()?.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?;
    Ok(Vec::try_from(&flat)?)
}
