// Package contract keeps the promise of a released contract: it freezes a revision under contracts/baseline, and refuses a
// contract that takes back what a frozen one says.
//
// A baseline is the folder of one revision: image.txtpb, the proto files as buf built them, and tables, as they were. It is
// written once and never again. What releasing is, step by step, is in contracts/RELEASING.md.
//
// What must stay out: what the tables mean (package tablegen) and how code is generated (package generate).
package contract
