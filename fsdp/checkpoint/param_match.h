// Which tensors of a checkpoint are the parameters of a model, whoever named them (tensor_names.h).
//
// A checkpoint has the names of one naming, below whatever name a whole training state gave the model. What
// it lacks of the model, has in another shape or as other than floating-point numbers, and has too much
// inside of the model is a fault, all of them at once.
//
// Where a state holds several models, the one under no name or under "model", "state_dict" and the like is
// taken, and else the only complete one. Of two that are complete with equal right none is: a fault names
// both.
//
// Pure functions of what the reader lists.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/tensor_names.h"
#include "fsdp/checkpoint/tensor_store.h"

namespace fsdpd {

// None where none of the names are those of this model's family.
std::optional<Naming> NamingOf(const TensorReader& source, const ModelConfig& model);

struct ParamMatch {
  std::vector<NamedParam> params;  // Every parameter of the model, in our order.
  std::vector<size_t> tensors;     // Of each, where there are no faults: its number in the source.
  DcpFaults faults;
  std::vector<std::string> left_out;  // Of the source's tensors: the optimizer's, and what is computed.
  // The head's tensor in the source, where the model ties it to the embedding (params[0]); -1: there is none.
  int64_t tied_copy = -1;
};

// `only_model`: nothing but the model is expected in the source, as in a Hugging Face directory.
ParamMatch MatchParams(const TensorReader& source, const ModelConfig& model, bool only_model);

}  // namespace fsdpd
