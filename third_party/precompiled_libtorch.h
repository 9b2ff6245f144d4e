// The headers that sources and tests of packages with LibTorch begin with. Loading their index costs each compile 0.17 s.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "precompiled_tests.h"
