// Minimal valid job spec for CPU ranks. Planning it takes no noticeable time. Tests change single fields.
#pragma once

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

inline v1::JobSpec TinySpec(int nodes = 1, int ranks_per_node = 1) {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_model()->set_preset("tiny");
  spec.mutable_data()->mutable_synthetic();
  spec.mutable_data()->set_sequence_length(64);
  spec.mutable_train()->set_steps(10);
  spec.mutable_resources()->set_nodes(nodes);
  spec.mutable_resources()->set_ranks_per_node(ranks_per_node);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  return spec;
}

}  // namespace fsdpd
