#pragma once

#include "models/model.h"

namespace cairn::trainer {

/// VGG-16 (Simonyan and Zisserman, 2015; configuration D) with torchvision's layers, names and initial weights.
///
/// Takes "image" [n, 3, h, w] (h and w at least 32) and "label" [n]. Size "width": channels of the first block, 64;
/// everything else follows in proportion (the classifier's 4096 is 64 times the width).
Model MakeVgg16(const ModelConfig& config);

}  // namespace cairn::trainer
