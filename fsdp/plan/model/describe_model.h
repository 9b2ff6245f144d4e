// Description of a model as facts (model_facts.h): units, shapes, bytes and FLOPs, computed from its
// configuration. Pure.
#pragma once

#include <cstdint>

#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// Units: "embedding", "layer.0" .. "layer.N-1", "head" (final norm, output projection and loss). Parameters
// in order; [those in brackets] depend on the configuration:
//  llama  embedding: weight
//         layer:     attention_norm, attention.wq, [attention.bq], attention.wk, [attention.bk],
//                    attention.wv, [attention.bv], [attention.q_norm], [attention.k_norm], attention.wo,
//                    ffn_norm, ffn.w1 (gate), ffn.w3 (up), ffn.w2
//         layer, with latent attention:
//                    attention_norm, attention.wq or attention.wq_a, attention.wkv_a,
//                    [attention.q_a_norm, attention.wq_b], attention.kv_a_norm, attention.wkv_b,
//                    attention.wo, then as above
//         layer, with experts: the attention parameters as above, then
//                    ffn_norm, ffn.router, [ffn.router_bias], ffn.experts.w1, ffn.experts.w3,
//                    ffn.experts.w2, [ffn.shared.w1, ffn.shared.w3, ffn.shared.w2]
//         head:      norm, [output; absent when tied: the head borrows the embedding]
//  gpt2   embedding: weight, positions
//         layer:     attention_norm.weight, attention_norm.bias, attention.wqkv, attention.bqkv,
//                    attention.wo, attention.bo, ffn_norm.weight, ffn_norm.bias, ffn.w1, ffn.b1, ffn.w2,
//                    ffn.b2
//         head:      norm.weight, norm.bias, [output]
//  plugin units and parameters as the plug-in describes them. The first unit counts as the embedding, the
//         last as the head, the others as layers, which support recompute: full recompute saves only the
//         layer's input, i.e. the output of the unit before.
//  package as a plug-in, with the names of PyTorch's own parameters (ParamFacts::owner).
// Matrices are [out features, in features]; the experts of a layer are one tensor, [experts, out, in]; the
// embedding is [vocab, hidden]. Tensor parallelism partitions attention by heads, the feed-forward layer by
// its intermediate size, and embedding and output by vocabulary. Norms are not partitioned, nor are key and
// value projections with fewer heads than ranks.
ModelFacts DescribeModel(const ModelConfig& model, int64_t micro_batch, int64_t sequence_length,
                         DType compute);

// The facts of a spec's model, including frozen parameters and the weight decay and learning-rate scale of
// parameter groups. Patterns match a parameter's full name (FullName).
ModelFacts DescribeSpec(const Spec& spec);

}  // namespace fsdpd
