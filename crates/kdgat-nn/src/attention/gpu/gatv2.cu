// Kernels of GATv2, in addition to shared.cu: for target i, source j and head h, score = a_h · leaky_relu(source_j +
// target_i + edge_ij), with values source_j.
//
// Both directions of the backward recompute the inner sums, because storing them would take an array of edges ×
// channels.

// Scores of edges.
extern "C" __global__ void score_pairs(
    int nodes,
    ARRAY(const int) row_pointers, // [nodes + 1]
    ARRAY(const int) sources, // [edges]
    ARRAY(const Value) source_values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Value) target_values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Value) edge_terms, // [edges, HEADS * CHANNELS], or absent
    ARRAY(const Real) attention, // [HEADS * CHANNELS]
    Real negative_slope,
    ARRAY(Real) edge_scores) { // [edges, HEADS]
  const Place at = place_of_warp();
  if (at.node >= nodes) {
    return;
  }
  const Index first_edge = row_pointers[at.node];
  const Index end = row_pointers[at.node + 1];
  Real target_row[CHANNELS_OF_LANE] = {};
  Real attention_row[CHANNELS_OF_LANE] = {};
  for_each_channel([&](int part, int channel) {
    target_row[part] = widen(target_values[at.item * CHANNELS + channel]);
    attention_row[part] = attention[at.head * CHANNELS + channel];
  });
  for (Index edge = first_edge; edge < end; ++edge) {
    const Index position = edge * HEADS + at.head;
    const Index row = (static_cast<Index>(sources[edge]) * HEADS + at.head) * CHANNELS;
    Real score = 0;
    for_each_channel([&](int part, int channel) {
      Real sum = widen(source_values[row + channel]) + target_row[part];
      if (edge_terms) {
        sum += widen(edge_terms[position * CHANNELS + channel]);
      }
      score += attention_row[part] * leaky(sum, negative_slope);
    });
    score = sum_of_warp(score);
    if (at.lane == 0) {
      edge_scores[position] = score;
    }
  }
}

// Backward over incoming edges: gradients of the target values and of the edge terms, and each target's contribution to
// the attention vector's gradient.
extern "C" __global__ void pairs_backward_targets(
    int nodes,
    ARRAY(const int) row_pointers, // [nodes + 1]
    ARRAY(const int) sources, // [edges]
    ARRAY(const Value) source_values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Value) target_values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Value) edge_terms, // [edges, HEADS * CHANNELS], or absent
    ARRAY(const Real) attention, // [HEADS * CHANNELS]
    Real negative_slope,
    ARRAY(const Real) score_gradients, // [edges, HEADS]
    ARRAY(Value) target_gradients, // [nodes, HEADS * CHANNELS]
    ARRAY(Value) edge_gradients, // [edges, HEADS * CHANNELS], or absent
    ARRAY(Real) attention_parts) { // [nodes, HEADS * CHANNELS]
  const Place at = place_of_warp();
  if (at.node >= nodes) {
    return;
  }
  const Index first_edge = row_pointers[at.node];
  const Index end = row_pointers[at.node + 1];
  Real target_row[CHANNELS_OF_LANE] = {};
  Real attention_row[CHANNELS_OF_LANE] = {};
  Real of_target[CHANNELS_OF_LANE] = {};
  Real of_attention[CHANNELS_OF_LANE] = {};
  for_each_channel([&](int part, int channel) {
    target_row[part] = widen(target_values[at.item * CHANNELS + channel]);
    attention_row[part] = attention[at.head * CHANNELS + channel];
  });
  for (Index edge = first_edge; edge < end; ++edge) {
    const Index position = edge * HEADS + at.head;
    const Index row = (static_cast<Index>(sources[edge]) * HEADS + at.head) * CHANNELS;
    const Real of_score = score_gradients[position];
    for_each_channel([&](int part, int channel) {
      Real sum = widen(source_values[row + channel]) + target_row[part];
      if (edge_terms) {
        sum += widen(edge_terms[position * CHANNELS + channel]);
      }
      const Real of_sum = of_score * attention_row[part] * (sum > 0 ? 1 : negative_slope);
      of_target[part] += of_sum;
      of_attention[part] += of_score * leaky(sum, negative_slope);
      if (edge_gradients) {
        edge_gradients[position * CHANNELS + channel] = narrow(of_sum);
      }
    });
  }
  for_each_channel([&](int part, int channel) {
    target_gradients[at.item * CHANNELS + channel] = narrow(of_target[part]);
    attention_parts[at.item * CHANNELS + channel] = of_attention[part];
  });
}

// Backward over outgoing edges: gradients of the source values, through the weighted sum and through the scores.
extern "C" __global__ void pairs_backward_sources(
    int nodes,
    ARRAY(const int) column_pointers, // [nodes + 1]
    ARRAY(const int) transposed, // [edges]: index of each edge in order of target
    ARRAY(const int) targets, // [edges], in order of target
    ARRAY(const Value) source_values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Value) target_values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Value) edge_terms, // [edges, HEADS * CHANNELS], or absent
    ARRAY(const Real) attention, // [HEADS * CHANNELS]
    Real negative_slope,
    ARRAY(const Value) gradient, // of the output, [nodes, HEADS * CHANNELS]
    ARRAY(const Real) signed_weights, // [edges, HEADS]
    ARRAY(const Real) applied_weights, // [edges, HEADS], absent without dropout
    ARRAY(const Real) score_gradients, // [edges, HEADS]
    ARRAY(Value) source_gradients) { // [nodes, HEADS * CHANNELS]
  const Place at = place_of_warp();
  if (at.node >= nodes) {
    return;
  }
  const Index first_edge = column_pointers[at.node];
  const Index end = column_pointers[at.node + 1];
  Real source_row[CHANNELS_OF_LANE] = {};
  Real attention_row[CHANNELS_OF_LANE] = {};
  Real of_source[CHANNELS_OF_LANE] = {};
  for_each_channel([&](int part, int channel) {
    source_row[part] = widen(source_values[at.item * CHANNELS + channel]);
    attention_row[part] = attention[at.head * CHANNELS + channel];
  });
  for (Index place = first_edge; place < end; ++place) {
    const Index edge = transposed[place];
    const Index position = edge * HEADS + at.head;
    const Index row = (static_cast<Index>(targets[edge]) * HEADS + at.head) * CHANNELS;
    const Real of_score = score_gradients[position];
    const Real weight = applied_weights ? applied_weights[position] : magnitude(signed_weights[position]);
    for_each_channel([&](int part, int channel) {
      Real sum = source_row[part] + widen(target_values[row + channel]);
      if (edge_terms) {
        sum += widen(edge_terms[position * CHANNELS + channel]);
      }
      of_source[part] += weight * widen(gradient[row + channel]);
      of_source[part] += of_score * attention_row[part] * (sum > 0 ? 1 : negative_slope);
    });
  }
  for_each_channel([&](int part, int channel) {
    source_gradients[at.item * CHANNELS + channel] = narrow(of_source[part]);
  });
}
