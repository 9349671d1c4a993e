// Everything.
#pragma once

#include "ejk/array.hpp"
#include "ejk/convention.hpp"
#include "ejk/dtype.hpp"
#include "ejk/error.hpp"
#include "ejk/io.hpp"
#include "ejk/machine.hpp"
#include "ejk/mask.hpp"
#include "ejk/mask_info.hpp"
#include "ejk/pack.hpp"
#include "ejk/report.hpp"
#include "ejk/segments.hpp"
#include "ejk/sequence.hpp"
#include "ejk/statistics.hpp"
#include "ejk/text.hpp"
