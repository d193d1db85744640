"""What the ranks of a job do together: talk, agree, find replicas, restore. Imports no torch."""
