#pragma once

/// Everything a user of Cairn includes.
#include "cairn/checkpointer.h"  // IWYU pragma: export
#include "cairn/group.h"         // IWYU pragma: export
#include "cairn/options.h"       // IWYU pragma: export
#include "cairn/stats.h"         // IWYU pragma: export
#include "cairn/status.h"        // IWYU pragma: export
#include "cairn/tensor.h"        // IWYU pragma: export
