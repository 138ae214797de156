"""What a training will be and cost, before it begins: preparation, FLOPs, memory, matching, the doctor."""
