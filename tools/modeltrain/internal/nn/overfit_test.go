package nn

import (
	"math"
	"slices"
	"testing"
)

// train fits a model of the small shape to one sequence and returns it with its last loss per token.
func train(t *testing.T, seq []int, steps int) (*Model[float32], *Run[float32], float64) {
	t.Helper()
	m, err := New[float32](small)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRun(m)
	opt := AdamW{Beta1: 0.9, Beta2: 0.98, Eps: 1e-8, Decay: 0.01, Clip: 1}
	in, want := seq[:len(seq)-1], seq[1:]
	loss := 0.0
	for step := 1; step <= steps; step++ {
		r.Clear()
		r.Forward(in)
		loss = r.Backward(in, want, 1/float64(len(in))) / float64(len(in))
		m.Step(r, opt, 5e-3, step)
	}
	return m, r, loss
}

var sequence = []int{1, 7, 3, 3, 9, 7, 2, 15, 7, 3, 11, 19, 0, 7, 7, 4, 18, 6, 12, 5, 13, 8, 14, 10, 16, 17, 2, 3, 9, 1, 6}

func TestTrainingLearnsASequenceByHeart(t *testing.T) {
	_, r, loss := train(t, sequence, 150)
	if math.IsNaN(loss) || loss > 0.1 {
		t.Fatalf("loss after 150 steps is %g nats a token, want below 0.1", loss)
	}
	got := []int{sequence[0]}
	for len(got) < len(sequence) {
		r.Forward(got)
		row := r.Logits(len(got) - 1)
		best := 0
		for i, v := range row {
			if v > row[best] {
				best = i
			}
		}
		got = append(got, best)
	}
	if !slices.Equal(got, sequence) {
		t.Errorf("greedy continuation is %v, want %v", got, sequence)
	}
}

func TestTrainingTwiceGivesTheSameBits(t *testing.T) {
	a, _, _ := train(t, sequence, 10)
	b, _, _ := train(t, sequence, 10)
	for i, w := range a.Tensors {
		if !slices.Equal(w.Data, b.Tensors[i].Data) {
			t.Errorf("%s differs between two equal trainings", w.Name)
		}
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	_, err := New[float32](Config{Heads: 3, KVHeads: 2, Width: 10, FeedFwd: 8, Vocab: 4, Context: 4})
	if err == nil {
		t.Fatal("a shape with three faults was accepted")
	}
	want := "layers is 0; it must be 1 or more\n" +
		"3 heads cannot share 2 key heads\n" +
		"width 10 is not a multiple of twice the 3 heads"
	if err.Error() != want {
		t.Errorf("faults are:\n%v\nwant:\n%s", err, want)
	}
}
