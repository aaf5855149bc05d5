// Kernels of GAT, in addition to shared.cu.

// Scores by node: scalar products of each head's values with its two attention vectors.
extern "C" __global__ void project_scores(
    int nodes,
    ARRAY(const Value) values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Real) attention_source, // [HEADS * CHANNELS]
    ARRAY(const Real) attention_target, // [HEADS * CHANNELS]
    ARRAY(Real) source_scores, // [nodes, HEADS]
    ARRAY(Real) target_scores) { // [nodes, HEADS]
  const Place at = place_of_warp();
  if (at.node >= nodes) {
    return;
  }
  Real source = 0;
  Real target = 0;
  for_each_channel([&](int, int channel) {
    const Real value = widen(values[at.item * CHANNELS + channel]);
    source += value * attention_source[at.head * CHANNELS + channel];
    target += value * attention_target[at.head * CHANNELS + channel];
  });
  source = sum_of_warp(source);
  target = sum_of_warp(target);
  if (at.lane == 0) {
    source_scores[at.item] = source;
    target_scores[at.item] = target;
  }
}

// Backward over outgoing edges: gradients of the values, and of the scores by source.
extern "C" __global__ void attend_backward_sources(
    int nodes,
    ARRAY(const int) column_pointers, // [nodes + 1]
    ARRAY(const int) transposed, // [edges]: index of each edge in order of target
    ARRAY(const int) targets, // [edges], in order of target
    ARRAY(const Value) gradient, // of the output, [nodes, HEADS * CHANNELS]
    ARRAY(const Real) signed_weights, // [edges, HEADS]
    ARRAY(const Real) applied_weights, // [edges, HEADS], absent without dropout
    ARRAY(const Real) raw_gradients, // [edges, HEADS]
    ARRAY(const Real) target_gradients, // [nodes, HEADS]
    ARRAY(const Real) attention_source, // [HEADS * CHANNELS], absent if scores were given
    ARRAY(const Real) attention_target, // [HEADS * CHANNELS], likewise
    ARRAY(Real) source_gradients, // [nodes, HEADS]
    ARRAY(Value) value_gradients) { // [nodes, HEADS * CHANNELS]
  const Place at = place_of_warp();
  if (at.node >= nodes) {
    return;
  }
  const Index first_edge = column_pointers[at.node];
  const Index end = column_pointers[at.node + 1];
  Real sums[CHANNELS_OF_LANE] = {};
  Real total = 0;
  for (Index chunk = first_edge; chunk < end; chunk += LANES) {
    const Index place = chunk + at.lane;
    Real weight = 0;
    int target = 0;
    if (place < end) {
      const int edge = transposed[place];
      const Index position = static_cast<Index>(edge) * HEADS + at.head;
      target = targets[edge];
      weight = applied_weights ? applied_weights[position] : magnitude(signed_weights[position]);
      total += raw_gradients[position];
    }
    const int edges = end - chunk < LANES ? static_cast<int>(end - chunk) : LANES;
    for (int other = 0; other < edges; ++other) {
      const Real factor = __shfl_sync(ALL_LANES, weight, other);
      const Index row = (static_cast<Index>(__shfl_sync(ALL_LANES, target, other)) * HEADS + at.head) * CHANNELS;
      for_each_channel([&](int part, int channel) {
        sums[part] += factor * widen(gradient[row + channel]);
      });
    }
  }
  total = sum_of_warp(total);
  if (at.lane == 0) {
    source_gradients[at.item] = total;
  }
  for_each_channel([&](int part, int channel) {
    const int column = at.head * CHANNELS + channel;
    Real through_scores = 0;
    if (attention_source) {
      through_scores = total * attention_source[column] + target_gradients[at.item] * attention_target[column];
    }
    value_gradients[at.item * CHANNELS + channel] = narrow(sums[part] + through_scores);
  });
}

// Gradients of the two attention vectors: sums over nodes of score gradients times values, in parts of NODES_OF_PART
// nodes.
extern "C" __global__ void add_up_vector_gradients(
    int nodes,
    ARRAY(const Value) values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Real) source_gradients, // [nodes, HEADS]
    ARRAY(const Real) target_gradients, // [nodes, HEADS]
    ARRAY(Real) parts) { // [parts, 2, HEADS * CHANNELS]
  // Here a warp processes one part of the nodes and one head.
  const Place at = place_of_warp();
  const Index first = at.node * NODES_OF_PART;
  if (first >= nodes) {
    return;
  }
  const Index end = first + NODES_OF_PART < nodes ? first + NODES_OF_PART : nodes;
  Real of_source[CHANNELS_OF_LANE] = {};
  Real of_target[CHANNELS_OF_LANE] = {};
  for (Index node = first; node < end; ++node) {
    const Index position = node * HEADS + at.head;
    const Real source = source_gradients[position];
    const Real target = target_gradients[position];
    for_each_channel([&](int part, int channel) {
      const Real value = widen(values[position * CHANNELS + channel]);
      of_source[part] += source * value;
      of_target[part] += target * value;
    });
  }
  for_each_channel([&](int part, int channel) {
    parts[((2 * at.node) * HEADS + at.head) * CHANNELS + channel] = of_source[part];
    parts[((2 * at.node + 1) * HEADS + at.head) * CHANNELS + channel] = of_target[part];
  });
}
