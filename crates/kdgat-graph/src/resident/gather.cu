// Batches of graphs that stay on a GPU, and rows that do: gather.rs launches these kernels and documents their arguments.
//
// A table says where the graphs of a batch are. Its rows have a number for each graph, and one for their end:
//
//   FIRST_NODE, FIRST_EDGE, FIRST_PAIR   number of the graph's first node, edge and pair of the successor target in the batch
//   NODE_SHIFT, EDGE_SHIFT, PAIR_SHIFT   distance from there to their rows of the columns
//   SLOT                                 the graph's row of the columns of graphs
//   DROP_KEY                             seed of its random IDs
//
// Each thread writes what belongs to one node, edge, pair or graph of the batch, which may be padded as padding.rs says. Arrays are accessed by
// index only: a test runs this file on the CPU, where an ARRAY checks every index.
#ifndef ARRAY
#define ARRAY(type) type* __restrict__
#endif

typedef long long Long;
typedef unsigned long long Bits;

enum Row { FIRST_NODE, FIRST_EDGE, FIRST_PAIR, NODE_SHIFT, EDGE_SHIFT, PAIR_SHIFT, SLOT, DROP_KEY };

// What happens to the IDs of nodes that are dropped.
enum Drop { KEEPS_ALL, BECOMES_UNKNOWN, BECOMES_ANOTHER };

__device__ inline Long this_thread() {
  return static_cast<Long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ inline Long entry(ARRAY(const Long) table, int row, int graphs, int graph) {
  return table[static_cast<Long>(row) * (graphs + 1) + graph];
}

// The graph of an element: the last one whose first element is not after it.
__device__ inline int graph_of(ARRAY(const Long) table, int row, int graphs, Long element) {
  int low = 0, high = graphs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (entry(table, row, graphs, middle) <= element) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// As random.rs has it.
__device__ inline Bits mix(Bits bits) {
  bits += GOLDEN;
  bits = (bits ^ (bits >> 30)) * FIRST_MULTIPLIER;
  bits = (bits ^ (bits >> 27)) * SECOND_MULTIPLIER;
  return bits ^ (bits >> 31);
}

__device__ inline Long input_of(Long id, int drop, Bits limit, Bits key, Long node_of_graph) {
  if (drop == KEEPS_ALL) {
    return id;
  }
  const Bits bits = mix(key ^ static_cast<Bits>(node_of_graph));
  // A number in [0, 1) is a multiple of 2^-53: comparing it is comparing its numerator.
  if ((bits >> 11) >= limit) {
    return id;
  }
  return drop == BECOMES_UNKNOWN ? UNKNOWN : static_cast<Long>(mix(bits) >> (64 - ID_BITS));
}

extern "C" __global__ void assemble_nodes(
    int graphs, Bits padded_nodes, Bits padded_edges, int features, int drop, Bits drop_limit, ARRAY(const Long) table,
    ARRAY(const int) id_column, ARRAY(const Long) input_column, ARRAY(const float) feature_column, ARRAY(const int) row_starts,
    ARRAY(const int) column_starts, ARRAY(Long) id_index, ARRAY(Long) id_input, ARRAY(float) continuous, ARRAY(int) row_pointers,
    ARRAY(int) column_pointers, ARRAY(Long) graph_of_node, ARRAY(float) is_real) {
  const Long node = this_thread(), all = static_cast<Long>(padded_nodes);
  const Long nodes = entry(table, FIRST_NODE, graphs, graphs), edges = entry(table, FIRST_EDGE, graphs, graphs);
  if (node > all) {
    return;
  }
  if (node >= nodes) {
    // Extra edges are divided evenly among extra nodes. One pointer more than nodes is the end.
    const Long more_nodes = all - nodes, more_edges = static_cast<Long>(padded_edges) - edges;
    const Long pointer = edges + (more_nodes > 0 ? (node - nodes) * more_edges / more_nodes : 0);
    row_pointers[node] = column_pointers[node] = static_cast<int>(pointer);
    if (node < all) {
      id_index[node] = 0;
      if (id_input) {
        id_input[node] = 0;
      }
      for (int feature = 0; feature < features; ++feature) {
        continuous[node * features + feature] = 0;
      }
      graph_of_node[node] = graphs;
      is_real[node] = 0;
    }
    return;
  }
  const int graph = graph_of(table, FIRST_NODE, graphs, node);
  const Long row = node + entry(table, NODE_SHIFT, graphs, graph);
  const Long first_edge = entry(table, FIRST_EDGE, graphs, graph);
  const Long id = id_column[row];
  id_index[node] = id;
  if (id_input) {
    const Bits key = static_cast<Bits>(entry(table, DROP_KEY, graphs, graph));
    const Long node_of_graph = node - entry(table, FIRST_NODE, graphs, graph);
    id_input[node] = input_of(input_column ? input_column[row] : id, drop, drop_limit, key, node_of_graph);
  }
  for (int feature = 0; feature < features; ++feature) {
    continuous[node * features + feature] = feature_column[row * features + feature];
  }
  row_pointers[node] = static_cast<int>(row_starts[row] + first_edge);
  column_pointers[node] = static_cast<int>(column_starts[row] + first_edge);
  graph_of_node[node] = graph;
  if (is_real) {
    is_real[node] = 1;
  }
}

extern "C" __global__ void assemble_edges(
    int graphs, Bits padded_nodes, Bits padded_edges, int attributes, ARRAY(const Long) table, ARRAY(const int) source_column,
    ARRAY(const int) target_column, ARRAY(const int) transposed_column, ARRAY(const float) attribute_column, ARRAY(int) sources,
    ARRAY(int) targets, ARRAY(int) transposed, ARRAY(float) edge_attributes) {
  const Long edge = this_thread(), all = static_cast<Long>(padded_edges);
  const Long nodes = entry(table, FIRST_NODE, graphs, graphs), edges = entry(table, FIRST_EDGE, graphs, graphs);
  if (edge >= all) {
    return;
  }
  if (edge >= edges) {
    const Long more_nodes = static_cast<Long>(padded_nodes) - nodes;
    const Long node = nodes + ((edge - edges + 1) * more_nodes - 1) / (all - edges);
    sources[edge] = targets[edge] = static_cast<int>(node);
    transposed[edge] = static_cast<int>(edge);
    for (int attribute = 0; attribute < attributes; ++attribute) {
      edge_attributes[edge * attributes + attribute] = 0;
    }
    return;
  }
  const int graph = graph_of(table, FIRST_EDGE, graphs, edge);
  const Long row = edge + entry(table, EDGE_SHIFT, graphs, graph);
  const Long first_node = entry(table, FIRST_NODE, graphs, graph);
  sources[edge] = static_cast<int>(source_column[row] + first_node);
  targets[edge] = static_cast<int>(target_column[row] + first_node);
  transposed[edge] = static_cast<int>(transposed_column[row] + entry(table, FIRST_EDGE, graphs, graph));
  for (int attribute = 0; attribute < attributes; ++attribute) {
    edge_attributes[edge * attributes + attribute] = attribute_column[row * attributes + attribute];
  }
}

extern "C" __global__ void assemble_pairs(
    int graphs, Bits padded_nodes, Bits padded_pairs, Bits vocabulary_size, ARRAY(const Long) table, ARRAY(const Long) pair_column,
    ARRAY(Long) pairs) {
  const Long pair = this_thread(), size = static_cast<Long>(vocabulary_size);
  if (pair >= static_cast<Long>(padded_pairs)) {
    return;
  }
  if (pair >= entry(table, FIRST_PAIR, graphs, graphs)) {
    pairs[pair] = (static_cast<Long>(padded_nodes) - 1) * size;
    return;
  }
  const int graph = graph_of(table, FIRST_PAIR, graphs, pair);
  pairs[pair] = pair_column[pair + entry(table, PAIR_SHIFT, graphs, graph)] + entry(table, FIRST_NODE, graphs, graph) * size;
}

// Targets of graphs are copied as words of 32 bits, of whatever type they are.
extern "C" __global__ void assemble_graphs(
    int graphs, Bits padded_nodes, Bits padded_graphs, int target_words, ARRAY(const Long) table, ARRAY(const Long) label_column,
    ARRAY(const int) target_column, ARRAY(Long) node_pointers, ARRAY(Long) labels, ARRAY(int) targets, ARRAY(float) is_real,
    ARRAY(float) real_nodes, ARRAY(float) real_graphs) {
  const Long graph = this_thread(), all = static_cast<Long>(padded_graphs);
  if (graph > all) {
    return;
  }
  const bool exists = graph < graphs;
  node_pointers[graph] = graph <= graphs ? entry(table, FIRST_NODE, graphs, static_cast<int>(graph)) : static_cast<Long>(padded_nodes);
  if (graph == 0 && real_nodes) {
    real_nodes[0] = static_cast<float>(entry(table, FIRST_NODE, graphs, graphs));
    real_graphs[0] = static_cast<float>(graphs);
  }
  if (graph == all) {
    return;
  }
  const Long row = exists ? entry(table, SLOT, graphs, static_cast<int>(graph)) : 0;
  labels[graph] = exists ? label_column[row] : 0;
  for (int word = 0; word < target_words; ++word) {
    targets[graph * target_words + word] = exists ? target_column[row * target_words + word] : 0;
  }
  if (is_real) {
    is_real[graph] = exists ? 1 : 0;
  }
}

__device__ inline float widened(unsigned short half) {
  const unsigned sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 1023u;
  if (exponent == 31u) {
    return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  }
  if (exponent > 0u) {
    return __uint_as_float(sign | (exponent + 112u) << 23 | fraction << 13);
  }
  // A multiple of 2^-24, exact in single precision.
  const float value = static_cast<float>(fraction) * 5.9604644775390625e-8f;
  return sign != 0u ? -value : value;
}

// Rows of graphs, or of their nodes, as single precision. The table has three rows here: each graph's first node, the distance to its row, and the
// graph's own row.
extern "C" __global__ void gather_rows(
    int graphs, Bits rows, int columns, int of_nodes, ARRAY(const Long) table, ARRAY(const float) floats,
    ARRAY(const unsigned short) halves, ARRAY(float) gathered) {
  const Long element = this_thread();
  const Long row = element / columns, column = element % columns;
  if (row >= static_cast<Long>(rows)) {
    return;
  }
  const Long from = of_nodes != 0 ? row + entry(table, 1, graphs, graph_of(table, 0, graphs, row)) : entry(table, 2, graphs, static_cast<int>(row));
  gathered[element] = floats ? floats[from * columns + column] : widened(halves[from * columns + column]);
}
