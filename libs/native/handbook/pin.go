package handbook

// SHA256 is the hash of handbook.gguf, in lower-case hexadecimal. Written by tools/modeltrain.
const SHA256 = "dcd24d2aa091fc9928762fc88a58c3a2581358ba67c161527d1461f1aa27e4a7"
